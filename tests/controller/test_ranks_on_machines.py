"""Ranks of one model on two machines of a cluster: networks and memories of their own, on this host."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from controller_jobs import make_job
from machines import can_be_two
from ray_nodes import Cluster, lose, machines
from ray_run import actors
from safetensors.torch import load_file

from headrace.cli.main import main
from headrace.store import RunReader

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'headrace[cluster]'"),
    pytest.mark.skipif(not can_be_two(), reason="no networks of a test's own here"),
]
_WAIT_S = 200.0
_DRAWN = Path(__file__).parents[1] / "helpers" / "ray_drawn.py"
_SILENT = _DRAWN.with_name("ray_silent.py")
JOB = {
    "async__mode": "sync",
    "runtime__threads": 1,
    "checkpoint__every": 1,
    "checkpoint__keep": 100,
    "reward__trusted": True,
    "rollout__sampling__max_new_tokens": 8,
    "trainer__optimizer": {"betas": [0.0, 0.0], "eps": 1e4, "lr": 1e4},
}
RANKS = {
    "runtime__kind": "ray",
    "rollout__workers": 0,
    "trainer__layout": {"dp": 2, "zero": 2},
    "cluster__place__trainer": {"cpus": 1, "strategy": "spread"},
}


def training(cluster: Cluster, config: Path, run: Path, *overrides: str) -> subprocess.Popen[str]:
    """On the first machine, joined to the cluster."""
    command = [*cluster.first.enter, sys.executable, "-m", "headrace.cli.main", "train", str(config)]
    command += ["--dir", str(run), "--plain", f"runtime.address={cluster.address}", *overrides]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=cluster.environment
    )


def test_ranks_on_two_machines_train_as_one_rank_does_and_a_lost_machine_is_survived(tmp_path: Path) -> None:
    """Each has half of the weights. The second sees no memory that the first publishes in: what it has is sent. Then
    its machine is lost, and it goes on beside the first, from the last commit."""
    alone = make_job(tmp_path / "one" / "job", trainer__batches=1, **JOB)
    assert main(["train", str(alone), "data.shuffle=false", "--dir", str(tmp_path / "one" / "run"), "--plain"]) == 0
    config, run = make_job(tmp_path / "job", trainer__batches=5000, **JOB, **RANKS), tmp_path / "run"
    with machines(tmp_path) as cluster:
        on_first = [*cluster.first.enter, sys.executable]
        joined = [f"runtime.address={cluster.address}", "data.shuffle=false"]
        host = f"weights.host={cluster.first.address}"
        overrides = [json.dumps(joined), json.dumps([*joined, host])]
        drawn = subprocess.run(
            [*on_first, str(_DRAWN), str(config), "0", *overrides],
            **{"capture_output": True, "text": True, "timeout": _WAIT_S, "env": cluster.environment},
        )
        (refused,), placed = map(json.loads, drawn.stdout.splitlines())
        assert "trainer/0, trainer/1 are on several machines, and ranks of one model meet on loopback unless" in refused
        assert "weights.host says where" in refused
        assert (
            "  columns lie in the cluster's object store: when that is full, they spill to disks as the" in placed[-1]
        )
        there = placed.index(next(line for line in placed if cluster.second.address in line))
        assert [line for line in placed[there:] if "trainer" in line] == ["    CPU            trainer/1"]
        process = training(cluster, config, run, "data.shuffle=false", host)
        try:
            until(lambda: last_batch(run) > 0, process)
            assert len(actors(cluster.node, run, "trainer-1")) == 1
            lose(cluster.node)
            until(lambda: "went_back" in kinds_of(run), process)
            batch = last_batch(run)
            until(lambda: last_batch(run) > batch + 1, process)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=_WAIT_S)
        finally:
            process.kill()
        assert process.returncode == 0, out[-3000:]
    with RunReader(run) as reader, RunReader(tmp_path / "one" / "run") as one:
        reader.counts().check()
        ours, other = (next(iter(each.metrics.read("batch"))).record for each in (reader, one))
        sent = [event.data for event in reader.events.read() if event.kind == "weights_sent"]
    apart = [(each["parts_bytes"], each["bytes"], each["parts_share"]) for each in sent if "parts_bytes" in each]
    assert apart, "the second machine's part was sent"
    assert all(0.3 < size / whole < 0.7 and 0 < share <= 1 for size, whole, share in apart)
    for name in ("loss", "grad_norm", "entropy", "trained_tokens"):
        assert ours[name] == pytest.approx(other[name], rel=1e-5, abs=1e-6)
    weights, ranks = (
        load_file(folder / "run" / "checkpoints" / "step_1" / "model" / "model.safetensors")
        for folder in (tmp_path / "one", tmp_path)
    )
    begun = load_file(tmp_path / "job" / "model" / "model.safetensors")
    moved = max(float((weights[name] - begun[name]).abs().max()) for name in weights)
    assert moved > 0
    assert max(float((weights[name] - ranks[name]).abs().max()) for name in weights) <= 1e-5 * moved + 1e-7


def test_versions_leave_a_trainer_that_is_not_on_the_machine_that_weights_host_names(tmp_path: Path) -> None:
    """Relays meet on that network all the same, as where the trainer comes back elsewhere."""
    there = {"cluster__device": "slot", "cluster__place__trainer": {"devices": 1}}
    config = make_job(
        tmp_path / "job",
        trainer__batches=2,
        **JOB,
        runtime__kind="ray",
        rollout__workers=0,
        engine__process=True,
        **there,
    )
    run = tmp_path / "run"
    with machines(tmp_path, slot=1) as cluster:
        process = training(cluster, config, run, f"weights.host={cluster.first.address}")
        try:
            out, _ = process.communicate(timeout=_WAIT_S)
        finally:
            process.kill()
    assert process.returncode == 0, out[-3000:]
    with RunReader(run) as reader:
        events = [(event.kind, event.data) for event in reader.events.read()]
    assert [data["version"] for kind, data in events if kind == "weights_carried"] == ["v0", "v1", "v2"]
    assert [data["message"] for kind, data in events if kind == "relay_left_out"] == []


def test_a_machine_that_falls_silent_is_known_within_half_a_minute_whatever_is_on_it(tmp_path: Path) -> None:
    """One of two that play is there, whose event loop may stand for two minutes: the cable is pulled, so that nothing
    is refused and no connection ends. It is made anew on the first machine, and the run goes on."""
    plays = {
        "runtime__kind": "ray",
        "rollout__workers": 2,
        "cluster__place__rollout": {"cpus": 1, "strategy": "spread"},
    }
    config, run = make_job(tmp_path / "job", trainer__batches=5000, **JOB, **plays), tmp_path / "run"
    with machines(tmp_path) as cluster:
        process = training(cluster, config, run)
        try:
            until(lambda: last_batch(run) > 0, process)
            (name,) = (each for each in ("rollout-0", "rollout-1") if actors(cluster.node, run, each))
            subprocess.run([*cluster.first.enter, "ip", "link", "set", "here", "down"], check=True)
            began = time.monotonic()
            until(lambda: "worker_lost" in kinds_of(run), process)
            found_s = time.monotonic() - began
            batch = last_batch(run)
            until(lambda: last_batch(run) > batch + 1, process)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=_WAIT_S)
        finally:
            process.kill()
        assert process.returncode == 0, out[-3000:]
    assert found_s < 30
    with RunReader(run) as reader:
        reader.counts().check()
        (lost,) = [event.data for event in reader.events.read() if event.kind == "worker_lost"]
    assert lost["worker"] == name.replace("-", "/")
    assert "its machine has answered nothing for 2" in lost["message"]


@pytest.mark.soak
def test_columns_on_a_machine_that_has_fallen_silent_are_lost_with_their_keeper(tmp_path: Path) -> None:
    """Who is waiting for them then is told as soon as the keeper is lost, a minute before Ray knows of that machine."""
    with machines(tmp_path) as cluster:
        line = [*cluster.first.enter, sys.executable, str(_SILENT), cluster.address, cluster.second.address]
        asks = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=cluster.environment)
        try:
            assert asks.stdout is not None
            assert asks.stdout.readline().strip() == "kept"
            subprocess.run([*cluster.first.enter, "ip", "link", "set", "here", "down"], check=True)
            out, _ = asks.communicate("\n", timeout=_WAIT_S)
        finally:
            asks.kill()
    ended = json.loads(out)
    assert sorted(ended) == ["fetched", "get", "get_soon"]
    for seconds, told in ended.values():
        assert "rollout/0 does not keep the columns tokens" in told
        assert 1 <= seconds < 15


def last_batch(run: Path) -> int:
    if not (run / "run.db").exists():
        return -1
    with RunReader(run) as reader:
        return max((int(row.record["batch"]) for row in reader.metrics.read("batch")), default=-1)


def kinds_of(run: Path) -> set[str]:
    with RunReader(run) as reader:
        return {event.kind for event in reader.events.read()}


def until(holds: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + _WAIT_S
    while not holds():
        assert process.poll() is None, process.communicate()[0][-3000:]
        assert time.monotonic() < end
        time.sleep(0.2)
