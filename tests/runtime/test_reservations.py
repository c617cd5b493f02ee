"""What a run reserves of a cluster whose nodes come and go."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import psutil
import pytest
from ray_nodes import below, lose, node
from runtime_worker_kinds import Probe, Spec

from headrace.runtime.asked_of_nodes import AskedOfNodes
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.node_check import Needs
from headrace.runtime.placing import Bundle, Claim, Team, Teams
from headrace.runtime.refs import RefLost
from headrace.runtime.workers import Placement, WorkerLost

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), pytest.mark.usefixtures("one_ray")]

_WHERE = Placement(process=True, deadline_s=30, start_s=60)
Main = Callable[[InlineRuntime], Coroutine[Any, Any, None]]


def probes(count: int, devices: float) -> Teams:
    def team(*numbers: int) -> Team:
        return Team(tuple(Bundle((Claim(f"probe/{number}", devices, 0.1),)) for number in numbers))

    return Teams((team(*range(count)),), {"probe": team(0)}, "slot")


def run(main: Main, teams: Teams, room_s: float = 2.0) -> None:
    from headrace.runtime.ray.cluster import RayCluster

    async def whole() -> None:
        cluster = RayCluster(
            "a test",
            packages=["runtime_worker_kinds"],
            asked=AskedOfNodes(teams, lambda memory: {"probe": Needs()}, room_s=room_s),
        )
        runtime = InlineRuntime(apart=cluster, copying=False)
        try:
            await main(runtime)
        finally:
            await runtime.close()

    asyncio.run(whole())


def address() -> str:
    import ray

    found: str = ray.get_runtime_context().gcs_address
    return found


def test_more_than_the_cluster_has_is_refused_before_any_is_made() -> None:
    from headrace.runtime.ray.joining import ClusterRefusal

    async def main(runtime: InlineRuntime) -> None:
        with pytest.raises(ClusterRefusal, match=r"no node has room for probe/0, which ask for 1 slot and 0\.1 CPU"):
            await runtime.start(Probe, [Spec("a")], _WHERE)

    run(main, probes(1, 1))


def test_workers_of_a_lost_node_wait_for_room_and_go_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is added does not wait so long."""
    from headrace.runtime.ray import reservations

    async def main(runtime: InlineRuntime) -> None:
        workers = await runtime.start(Probe, [Spec("a"), Spec("b")], _WHERE)
        pids = await workers.call("pid", what="their processes")
        there = [each for each in below(first) if each.pid in pids]
        assert len(there) == 2
        (far,) = await workers.call("keep", 9, rank=0, what="a ref")
        own = runtime.put({"x": np.arange(3)})
        words = r"probe/2 has waited 0\.5 s for room: no node has room for"  # both devices are taken
        with monkeypatch.context() as patch:
            patch.setattr(reservations, "_ADDED_S", 0.5)
            with pytest.raises(WorkerLost, match=words):
                await workers.add(Spec("c"))

        lose(first)
        with pytest.raises(WorkerLost):
            await workers.call("sleep", 60.0, what="work that does not end")
        await workers.changed.wait_until(lambda: len(workers.lost) == 2, runtime.clock, 30, lambda: "both to be lost")
        assert not [each for each in psutil.wait_procs(there, 10)[1] if each.status() != psutil.STATUS_ZOMBIE]
        with pytest.raises(RefLost):
            await runtime.get(far)
        assert (await runtime.get(own))["x"].tolist() == [0, 1, 2]

        with pytest.raises(WorkerLost, match=r"has waited 2 s for room \(cluster\.room_deadline_s\): no node has room"):
            await workers.restart(0)
        with node(address(), os.environ, slot=1) as second:
            await workers.restart(0)
            await workers.restart(1)
            assert {each.pid for each in below(second)} >= set(await workers.call("pid", what="their processes"))
            await workers.leave(1)  # and its room is another's
            assert await workers.call("word", rank=await workers.add(Spec("c")), what="a word")

    with node(address(), os.environ, slot=1) as first:
        run(main, probes(2, 0.5))
