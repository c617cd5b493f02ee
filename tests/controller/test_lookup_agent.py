"""The example of an agent with a tool, run as its first lines say: it learns to look up."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "lookup_agent"


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.cpu
@pytest.mark.timeout(600)
def test_an_agent_learns_to_call_its_tool(tmp_path: Path) -> None:
    for file in EXAMPLE.iterdir():
        if file.suffix in (".py", ".yaml"):
            shutil.copy(file, tmp_path)
    headrace = [sys.executable, "-m", "headrace.cli.main"]
    for command in (
        [sys.executable, "make_files.py"],
        [*headrace, "sft", "sft.yaml", "--dir", "sft"],
        [*headrace, "train", "grpo.yaml", "--dir", "run"],
    ):
        subprocess.run(command, cwd=tmp_path, check=True, timeout=400, stdout=subprocess.DEVNULL)
    evaluated = json.loads((tmp_path / "run" / "summary.json").read_text())["eval"]
    assert evaluated["before"] <= 0.4
    assert evaluated["after"] >= 0.85
