"""Runs on several nodes: raylets of this machine stand for them, and a resource called slot for devices."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from ray_node import STORE
from ray_nodes import Node, Nodes, can_unshare, lose, nodes, raylet
from ray_run import actors, begun, command, gone, job_config, require_whole
from served_run import until_batch

from headrace.store import RunReader

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'headrace[cluster]'"),
]
_WAIT_S = 200.0
_DRAWN = Path(__file__).parents[1] / "helpers" / "ray_drawn.py"


def joined(there: Nodes, *more: str) -> list[str]:
    return [f"runtime.address={there.address}", "cluster.device=slot", *more]


def test_workers_on_another_node_than_the_controller(tmp_path: Path) -> None:
    """Trainer, engines and one that plays are there; `check` draws it so."""
    overrides = ["--resource", '{"actor": [1, 1], "rollout": [1, 1]}', "cluster.place.rollout={strategy: spread}"]
    with nodes(tmp_path) as there, there.node(slot=2) as far:
        line, run = command(tmp_path, *joined(there, *overrides), batches=30, engine__replicas=2)
        drawn = headrace(["check", line[4], *joined(there, *overrides)])
        assert "    slot 0         trainer/0 (all of it)\n" in drawn.stdout, drawn.stderr
        assert "    slot 1         engine/0 (0.5 of it), engine/1 (0.5 of it)\n" in drawn.stdout
        assert "object store" not in drawn.stdout
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
        require_whole(run, 30)
        for name in ("trainer-0", "engine-0", "engine-1", "rollout-0", "rollout-1"):
            assert (run / "logs" / f"{name}.log").is_file()
    (node,) = re.findall(r"^  node (.*): .*, 2 slot free$", drawn.stdout, re.MULTILINE)
    time = json.loads((run / "summary.json").read_text())["time"]
    assert time["devices"] == {
        f"slot 0 of {node}": pytest.approx(time["busy"]["trainer"]),
        f"slot 1 of {node}": pytest.approx(time["busy"]["engine 0"] + time["busy"]["engine 1"]),
    }


def test_a_lost_node_costs_the_run_its_workers_and_no_more(tmp_path: Path) -> None:
    """An engine and one that plays are on each of two nodes, one of which is lost: they find room on the other, and
    what was played is issued again. Then the command is killed, and goes on."""
    half = "{devices: 0.5, cpus: 0.5, strategy: spread}"
    overrides = [f"cluster.place.engine={half}", f"cluster.place.rollout={half}"]
    with nodes(tmp_path) as there, there.node(slot=2) as stays, there.node(slot=2) as goes:
        process, run = begun(tmp_path, *joined(there, *overrides), batches=5000, engine__replicas=2)
        try:
            until_batch(run, 3, process)
            lost = workers_on(goes, run)
            assert len(lost) == len(workers_on(stays, run)) == 2
            lose(goes)
            assert not gone(lost, 5.0)
            until(lambda: len(workers_on(stays, run)) == 4, process)
            until_batch(run, last_batch(run) + 3, process)
            left = workers_on(stays, run)
        finally:
            process.kill()
        process.communicate()
        assert not gone(left, 20.0)
        batches = last_batch(run) + 3
        made = subprocess.run(
            [*process.args, "--resume", f"trainer.batches={batches}"], capture_output=True, text=True, timeout=_WAIT_S
        )
        assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
        kinds = require_whole(run, batches)
        assert kinds["engine_died"] >= 1
        assert kinds["worker_lost"] >= 1


def test_the_others_go_on_without_a_replica_whose_node_is_lost_until_another_has_room(tmp_path: Path) -> None:
    """Each of two nodes has a rank that has all of the model, and no room for a second."""
    place = "cluster.place.trainer={devices: 1, strategy: spread}"
    with nodes(tmp_path) as there, there.node(slot=1) as stays, there.node(slot=1) as goes:
        process, run = begun(tmp_path, *joined(there, "trainer.layout.dp=2", place), batches=5000)
        try:
            until_batch(run, 3, process)
            (other,) = trainers_on(stays, run)
            (lost,) = trainers_on(goes, run)
            lose(goes)
            until(lambda: "trainer_healed" in kinds_of(run), process)
            until_batch(run, last_batch(run) + 3, process)
            assert trainers_on(stays, run) == [other]
            with there.node(slot=1) as comes:
                until(lambda: len(said(run, "trainer_healed")) == 2, process)
                until_batch(run, last_batch(run) + 3, process)
                assert trainers_on(comes, run) == [lost]
                process.send_signal(signal.SIGINT)
                out, _ = process.communicate(timeout=_WAIT_S)
        finally:
            process.kill()
        assert process.returncode == 0, out[-3000:]
    without, again = said(run, "trainer_healed")
    name = lost.replace("-", "/")
    assert without.startswith(f"the others go on without {name}, until a node has room: {name} is lost: ")
    assert again == f"{name} made anew, with the state of another replica"
    with RunReader(run) as reader:
        reader.counts().check()
        batches = [(row.branch, row.record["batch"]) for row in reader.metrics.read("batch")]
    assert batches == [(0, batch) for batch in range(len(batches))]


@pytest.mark.skipif(not can_unshare("-rm"), reason="no namespaces here")
def test_a_node_that_does_not_see_what_its_workers_need_is_refused(tmp_path: Path) -> None:
    """It has neither the memory of this machine nor the reward's function: as another machine. The trainer and an
    engine there share its memory, from where an engine here takes weights over a relay; and all goes through Ray."""
    code = tmp_path / "code"
    code.mkdir()
    config = job_config(tmp_path, 1, reward__function=f"{code}/reward.py:score")
    shutil.copy(tmp_path / "job" / "reward.py", code)
    shutil.copy(tmp_path / "job" / "reward.py", code / "own_reward.py")
    hide = f'mount -t tmpfs -o size=1g none /dev/shm && mount -t tmpfs none "{code}" && exec "$@"'
    places = ["engine={devices: 1}", "rollout={devices: 1}", "rollout={devices: 1, cpus: 640}"]
    with nodes(tmp_path) as there, there.node("unshare", "-rm", "sh", "-c", hide, "sh", slot=1) as far:
        shm = ["weights.transport=shm"]
        overrides = [json.dumps(joined(there, f"cluster.place.{place}", *shm)) for place in places]
        by_name = joined(there, f"cluster.place.{places[1]}", "reward.function=own_reward:score")
        overrides.append(json.dumps(by_name))
        overrides.append(json.dumps([*joined(there, f"cluster.place.{places[1]}"), STORE + 1]))
        line = [sys.executable, str(_DRAWN), str(config), "1", *overrides]
        knows = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path[1:], str(code)])}
        told = subprocess.run(
            line, capture_output=True, text=True, timeout=_WAIT_S, check=True, env=knows
        ).stdout.splitlines()
        mixed = joined(there, "cluster.place.trainer={devices: 1}", SPREAD, "engine.replicas=2", "trainer.batches=8")
        run = headrace(["train", str(own_reward(tmp_path)), "--dir", str(tmp_path / "run"), "--plain", *mixed])
        assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
        assert "object store: when that is full, they spill to disks as the cluster is set to" in run.stderr
        assert require_whole(tmp_path / "run", 8)["finished"] == 1
        relayed, taken = journeys(tmp_path / "run")
        assert relayed == [(f"v{number}", (1,)) for number in range(9)], "to the engine here alone"
        assert taken == {0, 1}
        assert not left_in_memory(far, 10.0)
    (engine,), (plays,), (short,), (named,), (stored,) = map(json.loads, told)
    assert (
        "(weights.transport shm: the memory of the machine where the command is), which engine/0 there need; " in engine
    )
    assert "it is another machine, which weights in shared memory do not reach: place trainer and engine on" in engine
    assert f"has no {code}/reward.py (reward.function), which rollout/0 there need; put it on a file system" in plays
    assert "finds no module own_reward (reward.function), which rollout/0 there need; install it there, or put" in named
    assert stored.startswith("samples of a batch take up to 0.20 GiB of the object store of the node 127.0.0.1 (")
    assert "which has 0.20 GiB; start Ray there with more (ray start --object-store-memory=419430402; it" in stored
    assert short.startswith("no node has room for rollout/0, which ask for 1 slot and 640 CPU")


@pytest.mark.soak
@pytest.mark.skipif(not can_unshare("-rm"), reason="no namespaces here")
def test_a_lost_machine_with_its_relay_is_left_out_and_its_engine_is_seated_elsewhere(tmp_path: Path) -> None:
    """One of two engines is on a node that does not see the trainer's memory, and takes versions over a relay there.
    The node is lost; the engine finds room here, where it sees that memory, and needs no relay."""
    hide = 'mount -t tmpfs -o size=1g none /dev/shm && exec "$@"'
    with nodes(tmp_path) as cluster, cluster.node("unshare", "-rm", "sh", "-c", hide, "sh") as far:
        process, run = begun(tmp_path, *joined(cluster, SPREAD), batches=5000, engine__replicas=2)
        try:
            until(lambda: len(journeys(run)[0]) > 3, process)
            assert {relays for _, relays in journeys(run)[0]} == {(1,)}
            there = [name for name in ("engine-0", "engine-1", "relay-1") if actors(far, run, name)]
            assert there in (["engine-0", "relay-1"], ["engine-1", "relay-1"])
            lose(far)
            until(lambda: "engine_back" in kinds_of(run), process)
            batch, before = last_batch(run), len(journeys(run)[0])
            until(lambda: last_batch(run) > batch + 2, process)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=_WAIT_S)
        finally:
            process.kill()
        assert len(journeys(run)[0]) == before
        kinds = require_whole(run, last_batch(run) + 1)
        assert kinds["relay_left_out"] >= 1, out[-2000:]


@pytest.mark.skipif(not can_unshare("-rm"), reason="no namespaces here")
def test_who_knows_where_columns_are_may_end_and_the_cluster_ends_the_run_in_order(tmp_path: Path) -> None:
    """All goes through Ray, since one that plays sees no memory of this machine."""
    hide = 'mount -t tmpfs -o size=1g none /dev/shm && exec "$@"'
    place = "cluster.place.rollout={devices: 1, strategy: spread}"
    with nodes(tmp_path, slot=1) as cluster, cluster.node("unshare", "-rm", "sh", "-c", hide, "sh", slot=1):
        process, run = begun(tmp_path, *joined(cluster, place), batches=5000)
        try:
            until_batch(run, 1, process)
            (shelf,) = cluster.processes("ray::Shelf")
            shelf.kill()
            until(lambda: "columns_lost" in kinds_of(run), process)
            until_batch(run, last_batch(run) + 3, process)
            (gcs,) = cluster.processes("gcs_server")
            gcs.kill()
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 1, out[-3000:]
    assert "headrace: the Ray cluster has ended: nobody has answered at its head's address" in out, out[-3000:]
    assert json.loads((run / "summary.json").read_text())["status"] == "failed"
    with RunReader(run) as reader:
        kinds = [event.kind for event in reader.events.read()]
    assert kinds.count("columns_lost") == 1
    assert kinds.count("restarted_batch") <= 8


SPREAD = "cluster.place.engine={cpus: 1, strategy: spread}"
"""One engine on the node of the command, one on another."""


def own_reward(folder: Path) -> Path:
    """A run whose functions all nodes see."""
    return job_config(folder / "seen", 1)


def journeys(run: Path) -> tuple[list[tuple[str, tuple[int, ...]]], set[int]]:
    """Which versions went to which relays; and the engines that took any."""
    if not (run / "run.db").exists():
        return [], set()
    with RunReader(run) as reader:
        events = [*reader.events.read()]
    carried = [event.data for event in events if event.kind == "weights_carried"]
    taken = {int(event.data["engine"]) for event in events if event.kind == "swap"}
    return [(str(each["version"]), tuple(each["relays"])) for each in carried], taken


def kinds_of(run: Path) -> set[str]:
    with RunReader(run) as reader:
        return {event.kind for event in reader.events.read()}


def said(run: Path, kind: str) -> list[str]:
    """The messages of these events."""
    with RunReader(run) as reader:
        return [event.data["message"] for event in reader.events.read() if event.kind == kind]


def left_in_memory(node: Node, seconds: float) -> list[Path]:
    """Of runs, after so long, in the memory that the node sees."""
    memory, end = Path(f"/proc/{raylet(node).pid}/root/dev/shm"), time.monotonic() + seconds
    while (left := [*memory.glob("headrace-*")]) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def last_batch(run: Path) -> int:
    with RunReader(run) as reader:
        return max(int(row.record["batch"]) for row in reader.metrics.read("batch"))


def until(holds: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + _WAIT_S
    while not holds():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.2)


def workers_on(node: Node, run: Path) -> list[psutil.Process]:
    """Engines, and those that play."""
    return [each for name in ("engine-0", "engine-1", "rollout-0", "rollout-1") for each in actors(node, run, name)]


def trainers_on(node: Node, run: Path) -> list[str]:
    """Ranks of the trainer."""
    return [name for name in ("trainer-0", "trainer-1") if actors(node, run, name)]


def headrace(line: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *line], capture_output=True, text=True, timeout=_WAIT_S
    )
