"""Runs whose trainer computes with Megatron-Core's layers, and whose engine is the embedded one."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from controller_jobs import make_job, make_model
from safetensors.torch import load_file

from headrace.cli.main import main
from headrace.store import RunReader
from headrace.training.megatron import support

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cpu,
    pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core is not installed (extra megatron)"),
]
SETTINGS = {
    "async__mode": "sync",
    "runtime__threads": 1,
    "trainer__placement": "process",
    "trainer__optimizer": {"betas": [0, 0], "eps": 1e4, "lr": 1e4},
    "trainer__max_grad_norm": 1e6,
    "checkpoint__every": 1,
    "algorithm__kl__coefficient": 0.1,
    "reference__placement": "hybrid",
}
"""With eps far above all gradients a step of AdamW is lr / eps times the gradient."""


def trained(folder: Path, *more: str) -> list[dict[str, Any]]:
    """The records of batches of a finished run."""
    job = folder / "job" / "grpo.yaml"
    job = job if job.exists() else make_job(folder / "job", **SETTINGS)
    assert main(["train", str(job), "data.shuffle=false", "--dir", str(folder / "run"), "--plain", *more]) == 0
    with RunReader(folder / "run") as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        return [row.record for row in reader.metrics.read("batch")]


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    """As transformers reads them."""
    return load_file(folder / "run" / "checkpoints" / f"step_{step}" / "model" / "model.safetensors")


def test_a_run_is_that_of_transformers_layers_and_goes_on_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights reach the engine in shared memory, and it takes none before its swap check agrees; what it samples then
    has the log-probs that the trainer computes. Two ranks; a reference in the trainer's process."""
    (one,) = trained(tmp_path / "one", "trainer.batches=1")
    megatron = ("trainer.backend=megatron", "trainer.layout=d2")
    other, _ = trained(tmp_path / "two", "trainer.batches=2", *megatron)
    assert other["trained_tokens"] == one["trained_tokens"]
    assert other["loss"] == pytest.approx(one["loss"], rel=1e-5, abs=1e-6)
    assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-6)
    assert other["entropy"] == pytest.approx(one["entropy"], rel=1e-6)
    begun = load_file(tmp_path / "one" / "job" / "model" / "model.safetensors")
    expected, found = (weights(tmp_path / each, 1) for each in ("one", "two"))
    moved = max(float((expected[name] - tensor).abs().max()) for name, tensor in begun.items())
    assert moved > 1e-3
    assert found.keys() == expected.keys()
    assert max(float((expected[name] - tensor).abs().max()) for name, tensor in found.items()) <= 1e-6 * moved + 1e-7
    records = trained(tmp_path / "two", "trainer.batches=3", "trainer.backend=hugging_face", "--resume")
    assert len(records) == 3
    assert all(record["mismatch_max_abs"] < 1e-5 for record in records)
    assert all(record["reference_kl"] > 0 for record in records[1:])
    steps = [weights(tmp_path / "two", step) for step in (2, 3)]
    assert max(float((steps[1][name] - tensor).abs().max()) for name, tensor in steps[0].items()) > 1e-4


def test_check_tells_where_it_was_run_and_what_does_not_go_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_job(tmp_path / "job", **SETTINGS)
    megatron = ["check", str(job), "trainer.backend=megatron"]
    assert main(megatron) == 0
    said = capsys.readouterr().out
    assert "megatron-core 0.16.1 trains the policy: run by Headrace's tests on CPUs, not on a CUDA device" in said
    for key, mend in (
        ("trainer.placement=own", "trainer.placement: process"),
        ("trainer.layout=t2", "trainer.layout is t2, ZeRO-3, .* use dp alone"),
        ("trainer.layout={dp: 2, zero: 2}", "trainer.layout is d2, ZeRO-2, .* use dp alone"),
        ("model.gradient_checkpointing=true", "gradient_checkpointing is true, .* set it to false"),
    ):
        assert main([*megatron, key]) != 0
        assert re.search(mend, capsys.readouterr().err.replace("\n", " ")), key
    make_model(tmp_path / "gpt2", "gpt2")
    assert main([*megatron, f"model.path={tmp_path / 'gpt2'}"]) != 0
    assert "'gpt2', whose weights are not mapped" in capsys.readouterr().err


def test_without_the_package_the_line_that_brings_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    job = make_job(tmp_path / "job", **SETTINGS)
    monkeypatch.setattr(support, "version", missing)
    assert main(["check", str(job), "trainer.backend=megatron"]) != 0
    assert "megatron-core is not installed: pip install 'headrace[megatron]'" in capsys.readouterr().err
    monkeypatch.setattr(support, "version", lambda name: "0.17.0")
    assert main(["check", str(job), "trainer.backend=megatron"]) != 0
    assert "megatron-core 0.17.0 is installed: pip install" in capsys.readouterr().err
