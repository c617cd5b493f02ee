"""A rank on a CUDA device makes the step that is made without ranks: NCCL's code, with one rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from devices import DEVICE
from safetensors.torch import load_file

HELPERS = Path(__file__).parents[1] / "helpers"
ONE: dict[str, dict[str, Any]] = {"one": {}, "kept": {"kept": True}, "saved": {"saves": True}}
RANKS: dict[str, dict[str, Any]] = {
    "zero2": {"layout": {"zero": 2}},
    "zero3": {"layout": {"zero": 3}},
    "shared": {"layout": {"zero": 3}, "shares": True},
    "shared-kept": {"layout": {"zero": 2}, "shares": True, "kept": True},
    "zero3-kept": {"layout": {"zero": 3}, "kept": True},
    "offloaded": {"layout": {"zero": 3}, "offload": True},
    "loaded": {"layout": {"zero": 3}, "loads": "saved"},
}
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(DEVICE.type == "cuda" and not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.timeout(240),
]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layouts")
    cases = [{"name": name, "model": "qwen3", "layout": {}, **more} for name, more in {**ONE, **RANKS}.items()]
    (folder / "cases.json").write_text(json.dumps(cases))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HELPERS), *sys.path])}
    command = [sys.executable, str(HELPERS / "layout_rank.py"), str(folder), "0"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def read(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    report = json.loads((folder / name / "report.json").read_text())
    return report, load_file(folder / name / "weights.safetensors")


@pytest.mark.parametrize("name", [name for name in RANKS if "loads" not in RANKS[name]])
def test_a_step_of_one_rank_is_that_without_ranks(ran: Path, name: str) -> None:
    (one, weights), (found, own) = read(ran, "kept" if RANKS[name].get("kept") else "one"), read(ran, name)
    assert found["loss"] == pytest.approx(one["loss"], rel=1e-6)
    assert found["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-6)
    assert found["now"] == pytest.approx(one["now"], abs=2e-5)
    assert own.keys() == weights.keys()
    for key, tensor in weights.items():
        assert float((own[key] - tensor).abs().max()) <= 1e-6 * max(float(tensor.abs().max()), 1.0), key


def test_a_checkpoint_without_ranks_goes_on_with_one(ran: Path) -> None:
    """The step behind it is the one that whoever saved it makes."""
    (_, saved), (_, found) = read(ran, "saved"), read(ran, "loaded")
    for key, tensor in saved.items():
        assert float((found[key] - tensor).abs().max()) <= 3e-6, key
