"""Hands of a run in Ray that come, go and sleep while it runs: on one cluster of two nodes, with slots for devices."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from controller_jobs import make_job
from ray_nodes import Node, Nodes, nodes
from ray_run import actors, gone, of_run
from served_run import until_batch

from headrace.cli.main import main
from headrace.store import RunReader

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'headrace[cluster]'"),
]
_WAIT_S = 200.0
BATCHES = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Nodes, Node]]:
    """A head with four processors and a slot, on whose node the commands are, and a node with as many and two."""
    with nodes(tmp_path_factory.mktemp("ray"), slot=1) as there, there.node(slot=2) as far:
        yield there, far


def test_engines_and_rollout_workers_come_where_there_is_room_and_go(
    cluster: tuple[Nodes, Node], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One engine and one that plays fill each node."""
    there, far = cluster
    places = ["cluster.place={engine: {cpus: 2}, rollout: {cpus: 2}}", "cluster.room_deadline_s=1", "rollout.workers=1"]
    process, run = begun(there, tmp_path, *places, async__max_staleness=2, trainer__batches=5000)
    try:
        until_batch(run, 1, process)
        assert not any(actors(far, run, name) for name in ("engine-0", "rollout-0"))
        assert main(["scale", str(run), "--engines", "2", "--rollout-workers", "2"]) == 0
        came = [*actors(far, run, "engine-1"), *actors(far, run, "rollout-1")]
        assert len(came) == 2
        capsys.readouterr()
        assert main(["scale", str(run), "--engines", "3"]) == 2
        told = capsys.readouterr().err
        assert told.startswith("headrace: engines: 2, and not 3: engine/2 is lost: engine/2 has waited 1 s for room (")
        assert "no node has room for engine/2, which ask for 0 slot and 2 CPU" in told
        assert told.count("\n") == 1
        until(lambda: has_worked(run), process)
        assert main(["scale", str(run), "--engines", "1", "--rollout-workers", "1"]) == 0
        assert not gone(came, 5.0)
        until_batch(run, batches(run) + 2, process)
        left = of_run(process, run)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=_WAIT_S)
    finally:
        process.kill()
    assert process.returncode == 0, out[-3000:]
    assert not gone(left, 10.0)
    with RunReader(run) as reader:
        reader.counts().check()
        records = [row.record for row in reader.metrics.read("batch")]
        kinds = [event.kind for event in reader.events.read()]
    assert [record["batch"] for record in records] == [*range(len(records))]
    assert not any(record["failed_samples"] for record in records)
    assert (kinds.count("engine_removed"), kinds.count("engine_died"), kinds.count("worker_lost")) == (1, 0, 0)


def test_engine_and_trainer_on_one_slot_by_turns(cluster: tuple[Nodes, Node], tmp_path: Path) -> None:
    there, far = cluster
    place = "{devices: 0.5, cpus: 1, strategy: spread}"
    process, run = begun(
        there,
        tmp_path,
        f"cluster.place={{trainer: {place}, engine: {place}}}",
        "cluster.colocate=[[trainer, engine]]",
        "engine.colocated=true",
        async__mode="sync",
    )
    records, summary = finished(process, run, far, "trainer-0", "engine-0")
    assert all(set(record["staleness"]) == {"0"} for record in records)
    assert summary["time"]["trainer_s"]["takes and gives its turn"] > 0


@pytest.mark.soak
def test_an_engine_is_lent_the_slot_of_the_trainer(cluster: tuple[Nodes, Node], tmp_path: Path) -> None:
    there, far = cluster
    place = "cluster.place.trainer={devices: 1, cpus: 1, strategy: spread}"
    process, run = begun(there, tmp_path, place, "engine.lent=1", async__mode="sync")
    records, summary = finished(process, run, far, "trainer-0", "lent-0")
    assert all(set(record["staleness"]) == {"0"} for record in records)
    with RunReader(run) as reader:
        lent = [event.data for event in reader.events.read() if event.kind == "lent"]
    assert lent[0]["tokens"] > 0
    assert 0 < summary["time"]["lent"] < 1
    assert summary["time"]["busy"]["engine 1 (lent)"] > 0


Run = subprocess.Popen[str]


def begun(there: Nodes, folder: Path, *overrides: str, **job: object) -> tuple[Run, Path]:
    """A run in this cluster, and its folder."""
    given = {"trainer__batches": BATCHES, "data__eval": None, "runtime__threads": 1, **job}
    config, run = make_job(folder / "job", runtime__kind="ray", **given), folder / "run"
    line = [sys.executable, "-m", "headrace.cli.main", "train", str(config), "--dir", str(run), "--plain"]
    line += [f"runtime.address={there.address}", "cluster.device=slot", *overrides]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True), run


def finished(process: Run, run: Path, far: Node, *names: str) -> tuple[list[Any], Any]:
    """Of a run whose workers of these names are on the far node, while it has them: records of its batches, and its
    summary."""
    try:
        until(lambda: all(actors(far, run, name) for name in names), process)
        out, _ = process.communicate(timeout=_WAIT_S)
    finally:
        process.kill()
    assert process.returncode == 0, out[-3000:]
    with RunReader(run) as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        records = [row.record for row in reader.metrics.read("batch")]
    assert [record["batch"] for record in records] == [*range(BATCHES)]
    return records, json.loads((run / "summary.json").read_text())


def has_worked(run: Path) -> bool:
    """Whether the engine that came took a version that was published since, and who came to play finished a group."""
    with RunReader(run) as reader:
        took = any(event.kind == "swap" and event.data.get("engine") == 1 for event in reader.events.read())
    return took and any((run / "journal").glob("2-*"))


def batches(run: Path) -> int:
    with RunReader(run) as reader:
        return len([*reader.metrics.read("batch")])


def until(holds: Callable[[], bool], process: Run) -> None:
    end = time.monotonic() + _WAIT_S
    while not holds():
        assert process.poll() is None, process.communicate()[0][-3000:]
        assert time.monotonic() < end
        time.sleep(0.1)
