"""The commands of docs/first-week.md, one after another, as a newcomer pastes them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.observe.run_record import RunWatcher
from headrace.store import RunReader

PAGE = Path(__file__).parents[2] / "docs" / "first-week.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def script_of(page: str) -> str:
    """All blocks as one shell script."""
    parts = []
    for language, block in BLOCK.findall(page):
        if language == "python":
            parts.append(f"python - <<'END_OF_PYTHON'\n{block}END_OF_PYTHON\n")
        else:
            parts.append(block)
    return "set -euo pipefail\n" + "".join(parts)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_newcomers_week(tmp_path: Path) -> None:
    beside = str(Path(sys.executable).parent)
    surroundings = {**os.environ, "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script_of(PAGE.read_text())],
        cwd=tmp_path,
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    runs = {}
    for name in "abc":
        with RunReader(tmp_path / "runs" / name) as reader:
            runs[name] = RunWatcher(reader).read()
    assert [len(runs[name].batches) for name in "abc"] == [30, 20, 30]
    assert set(runs["a"].sets) == {"short", "long"}
    assert {"mean", "pass@4"} <= {name for each in runs["a"].sets["long"] for name in each.metrics}
    assert set(runs["c"].sets) == {"short", "long"}
    rewards = [batch.reward_mean for batch in runs["a"].batches]
    assert sum(rewards[-5:]) > sum(rewards[:5]) + 1, "it learns"
    assert (tmp_path / "seeds.svg").read_text().startswith("<svg")
    assert (tmp_path / "losses.html").stat().st_size > 10_000
    assert any((tmp_path / "runs" / "a").rglob("events.out.tfevents*"))
    summary = json.loads((tmp_path / "runs" / "c" / "summary.json").read_text())
    assert summary["status"] == "finished"
