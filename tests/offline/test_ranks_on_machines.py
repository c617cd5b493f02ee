"""Ranks of the offline trainers on two machines: networks and memories of their own, on this host."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from controller_jobs import make_model
from machines import can_be_two, two_machines
from offline_jobs import TWO_CUT_UP, same, settings, train
from ray_nodes import machines, raylet

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not can_be_two(), reason="no networks of a test's own here"),
]
_WAIT_S = 200.0
_TRIES = Path(__file__).parents[1] / "helpers" / "offline_tries.py"


@pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'headrace[cluster]'")
def test_ranks_on_two_machines_of_a_cluster_train_as_one_does_and_a_lost_machine_ends_them(tmp_path: Path) -> None:
    """Each has half of the weights, and writes it after two steps. Then one machine is lost, and one rank makes the
    others."""
    model = make_model(tmp_path / "model")
    train("sft", settings(tmp_path, model, "sft"), tmp_path / "one")
    config = settings(tmp_path, model, "sft", TWO_CUT_UP)
    with machines(tmp_path) as cluster:
        placed = {"place": {"trainer": {"cpus": 1, "strategy": "spread"}}}
        there: dict[str, Any] = {**config, "cluster": placed, "runtime": {"kind": "ray", "address": cluster.address}}
        met = {**there, "runtime": {**there["runtime"], "host": cluster.first.address}}
        tries = [
            {"config": there, "out": str(tmp_path / "refused")},
            {"config": met, "out": str(tmp_path / "lost"), "kill": raylet(cluster.node).pid},
        ]
        line = [*cluster.first.enter, sys.executable, str(_TRIES), json.dumps(tries)]
        own = {"capture_output": True, "text": True, "timeout": _WAIT_S, "env": cluster.environment}
        ended = subprocess.run(line, **own)
    assert ended.returncode == 0, ended.stderr[-3000:]
    refused, lost = map(json.loads, ended.stdout.splitlines())
    assert refused.startswith("ClusterRefusal: rank/0, rank/1 are on several machines")
    assert "on loopback unless runtime.host says where" in refused
    assert lost.startswith("RankLost: rank/1 is lost: "), lost
    assert "--resume" in lost
    assert sorted(path.name for path in (tmp_path / "lost" / "checkpoint").glob("trainer-*")) == [
        f"trainer-{rank}-of-2.safetensors" for rank in range(2)
    ]
    train("sft", settings(tmp_path, model, "sft"), tmp_path / "lost", begin="resume")
    same(tmp_path / "one", tmp_path / "lost")


def test_torchruns_of_two_machines_have_the_ranks(tmp_path: Path) -> None:
    """The second one's finds the first over the network, and the address of what an earlier run left is of no use."""
    model = make_model(tmp_path / "model")
    train("sft", settings(tmp_path, model, "sft"), tmp_path / "one")
    config, out = settings(tmp_path, model, "sft", TWO_CUT_UP), tmp_path / "ranks"
    job = tmp_path / "job.yaml"
    with two_machines() as machines:
        first = machines[0]
        job.write_text(yaml.safe_dump({**config, "runtime": {"threads": 1, "host": first.address}}))
        out.mkdir()
        left = {"site": "", "launcher": 1, "pid": 1, "began": 0}
        gate = {"host": first.address, "port": 9, "token": "00"}
        (out / "ranks.json").write_text(json.dumps({**left, "gate": gate}))
        ended = [
            subprocess.Popen(
                [
                    *(*machine.enter, sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"),
                    *("--node-rank", str(number), "--nproc-per-node", "1", "--master-addr", first.address),
                    *("--master-port", "29511", "-m", "headrace", "sft", str(job), "--dir", str(out), "--plain"),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number, machine in enumerate(machines)
        ]
        told = [each.communicate(timeout=_WAIT_S) for each in ended]
    assert [each.returncode for each in ended] == [0, 0], told
    assert "sft step 4: loss" in told[0][0]
    assert told[1][0] == "", "the first rank alone tells"
    assert not (out / "ranks.json").exists()
    same(tmp_path / "one", out)
