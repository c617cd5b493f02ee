"""Runs on several nodes: raylets of this machine stand for them, and a resource called slot for devices."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from ray_nodes import Nodes, nodes
from ray_run import actors, command, require_whole
from served_run import until_batch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'headrace[cluster]'"),
]
_WAIT_S = 200.0


def joined(there: Nodes, *more: str) -> list[str]:
    return [f"runtime.address={there.address}", "cluster.device=slot", *more]


def test_workers_on_another_node_than_the_controller(tmp_path: Path) -> None:
    """Trainer, engines and one that plays are there; `check` draws it so."""
    overrides = ["--resource", '{"actor": [1, 1], "rollout": [1, 1]}', "cluster.place.rollout={strategy: spread}"]
    with nodes(tmp_path) as there, there.node(slot=2) as far:
        line, run = command(tmp_path, *joined(there, *overrides), batches=60, engine__replicas=2)
        drawn = told(["check", line[4], *joined(there, *overrides)])
        assert "    slot 0         trainer/0 (all of it)\n" in drawn.stdout, drawn.stderr
        assert "    slot 1         engine/0 (0.5 of it), engine/1 (0.5 of it)\n" in drawn.stdout
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            until_batch(run, 2, process)
            here = [len(actors(far, run, name)) for name in ("trainer-0", "engine-0", "engine-1", "rollout-0")]
            plays = sum(len(actors(far, run, f"rollout-{number}")) for number in (0, 1))
            out, _ = process.communicate(timeout=_WAIT_S)
        finally:
            process.kill()
        assert process.returncode == 0, out[-3000:]
        assert here[:3] == [1, 1, 1]
        assert plays == 1
        require_whole(run, 60)
        for name in ("trainer-0", "engine-0", "engine-1", "rollout-0", "rollout-1"):
            assert (run / "logs" / f"{name}.log").is_file()


def told(line: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *line], capture_output=True, text=True, timeout=_WAIT_S
    )
