"""The engine's kernels for CUDA devices, by Triton's interpreter and compiler, which SGLang's environment has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sglang_server import PYTHON

HELPERS = Path(__file__).parents[1] / "helpers"
PACKAGES = next(Path(PYTHON).parents[1].glob("lib/python*/site-packages"), None)
HAS_TRITON = PACKAGES is not None and (PACKAGES / "triton").exists()


def _told(script: str, tmp_path: Path, **environment: str) -> Any:
    """What a script of `tests/helpers` prints last, with Triton at hand."""
    if PACKAGES is None or not HAS_TRITON:
        pytest.fail("no Triton: `make sglang-env` brings it")
    for one in PACKAGES.glob("triton*"):  # nothing else of that environment
        (tmp_path / one.name).symlink_to(one)
    path = os.pathsep.join([str(HELPERS), str(tmp_path), *sys.path])
    everything = {**os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path / "compiled"), **environment}
    command = [sys.executable, str(HELPERS / script)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=everything)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.skipif(not HAS_TRITON, reason="no Triton: `make sglang-env` brings it")
def test_no_launch_takes_a_constant_of_theirs_for_changed(tmp_path: Path) -> None:
    """Triton refuses to launch a kernel one of whose global constants is unequal to its copy, as NaN always is. Neither
    its interpreter nor its compiler compares them."""
    told = _told("triton_constants.py", tmp_path)
    assert len(told["found"]) > 20
    assert {"attend_part", "choose_kept", "choose_of_all"} <= set(told["found"])
    assert told["changed"] == []


@pytest.mark.slow
def test_they_compile_for_devices_and_fit_into_their_shared_memory(tmp_path: Path) -> None:
    """Of 99 KiB, which the smallest devices of these generations have for a program; with heads of 64, 128 and 256, in
    float32 and bfloat16."""
    shared = _told("triton_compiled.py", tmp_path)
    assert len(shared) == 74
    assert max(shared.values()) <= 99 * 1024, shared


@pytest.mark.slow
def test_they_compute_what_torchs_own_do(tmp_path: Path) -> None:
    """Each operation, and whole models: prefill, and decode steps. float32 rounds by 2^-24, float16 by 2^-11."""
    found = _told("triton_interpreted.py", tmp_path, TRITON_INTERPRET="1")
    assert len(found["operations"]) == 36
    for what, error in found["operations"].items():
        assert error < (1e-6 if "float32" in what else 2e-3), what
    assert set(found["runners"]) == {"llama", "qwen3"}
    for name, error in found["runners"].items():
        assert error < 1.0, name


@pytest.mark.slow
def test_they_sample_what_float64_does(tmp_path: Path) -> None:
    """Rows cut in every way, with ties, that are not numbers, and of 50,257 tokens: tokens, log-probs and kept sets."""
    found = _told("triton_sampled.py", tmp_path, TRITON_INTERPRET="1")
    assert len(found) == 5
    for what, faults in found.items():
        assert faults == [], what
