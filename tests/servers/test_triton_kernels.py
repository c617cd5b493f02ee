"""The engine's kernels for CUDA devices, by Triton's interpreter, which SGLang's environment has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sglang_server import PYTHON

HELPERS = Path(__file__).parents[1] / "helpers"


@pytest.mark.slow
def test_they_compute_what_torchs_own_do(tmp_path: Path) -> None:
    """Each operation, and whole models: prefill, and decode steps. float32 rounds by 2^-24, float16 by 2^-11."""
    packages = next(Path(PYTHON).parents[1].glob("lib/python*/site-packages"), None)
    if packages is None or not (packages / "triton").exists():
        pytest.fail("no Triton: `make sglang-env` brings it")
    (tmp_path / "triton").symlink_to(packages / "triton")  # nothing else of that environment
    path = os.pathsep.join([str(HELPERS), str(tmp_path), *sys.path])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    script = [sys.executable, str(HELPERS / "triton_interpreted.py")]
    ran = subprocess.run(script, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert len(found["operations"]) == 36
    for what, error in found["operations"].items():
        assert error < (1e-6 if "float32" in what else 2e-3), what
    assert set(found["runners"]) == {"llama", "qwen3"}
    for name, error in found["runners"].items():
        assert error < 1.0, name
