"""The engine watch ends a run that nothing is generated for any more, after the deadline, and no other run."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from role_pool import Line, Member, Pool, Receiver, Scene, play

from headrace.engines.pool_state import EngineState
from headrace.engines.protocol import EngineError
from headrace.roles.engine_watch import EnginesLost, EngineWatchRole
from headrace.runtime.signal import Signal
from headrace.weights.version import Version


def flow(shut: str | None = None, running: int = 1) -> Any:
    return SimpleNamespace(changed=Signal(), running_groups=running, shut_by=lambda number: shut)


def watch(pool: Pool, of_flow: Any, body: Any, receiver: Receiver | None = None) -> None:
    def make(scene: Scene) -> EngineWatchRole:
        return EngineWatchRole(scene.context, pool, receiver)  # type: ignore[arg-type]

    play(lambda: of_flow, make, body)


def test_no_engine_for_the_deadline_ends_the_run() -> None:
    pool, of_flow = Pool(), flow()

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle(3_000)
        assert not running.done(), "as long as one serves"
        pool.down_s = 0.0
        pool.members[0].failure = MemoryError("no memory")
        of_flow.changed.notify()
        await scene.settle(99)
        assert not running.done()
        pool.down_s = 100.0
        await scene.settle(2)
        with pytest.raises(EnginesLost, match=r"no engine has served for 100 s .* died: no memory; resume the run"):
            await running

    watch(pool, of_flow, body)


def test_without_the_engine_of_a_judge_for_the_deadline_the_run_ends_too() -> None:
    for is_gone in (False, True):
        pool, judge, of_flow = Pool(), Pool(), flow()
        judge.judge, judge.name = "judges/small", "the engine of judge judges/small"

        async def body(
            scene: Scene, running: asyncio.Task[Any], judge: Pool = judge, of_flow: Any = of_flow, gone: bool = is_gone
        ) -> None:
            await scene.settle(3_000)
            assert not running.done()
            judge.members[0].failure = MemoryError("no memory")
            judge.failure, judge.down_s = (judge.members[0].failure, None) if gone else (None, 100.0)
            of_flow.changed.notify()
            await scene.settle(1)
            words = "" if gone else r"the engine of judge judges/small has not served for 100 s .*"
            with pytest.raises(EnginesLost, match=words + "the engine of judge judges/small died: no memory; resume"):
                await running

        def make(scene: Scene, pool: Pool = pool, judge: Pool = judge) -> EngineWatchRole:
            return EngineWatchRole(scene.context, pool, judges=[judge])  # type: ignore[arg-type, list-item]

        play(lambda of_flow=of_flow: of_flow, make, body)


@pytest.mark.parametrize(
    ("shut", "running", "evaluating", "ends"),
    [("prompts", 0, False, False), ("prompts", 1, False, True), ("prompts", 0, True, True), (None, 0, False, True)],
)
@pytest.mark.parametrize("gone", [False, True])
def test_only_a_run_that_still_wants_something_generated_is_ended(
    shut: str | None, running: int, evaluating: bool, ends: bool, gone: bool
) -> None:
    pool, of_flow = Pool(), flow(shut, running)
    pool.failure = EngineError("it is gone") if gone else None
    pool.down_s = None if gone else 200.0

    async def body(scene: Scene, task: asyncio.Task[Any]) -> None:
        await scene.settle(5)
        assert task.done() is ends
        if ends:
            with pytest.raises(EnginesLost, match="it is gone" if gone else "no engine has served"):
                await task

    def make(scene: Scene) -> EngineWatchRole:
        scene.activity.evaluating = evaluating
        return EngineWatchRole(scene.context, pool)  # type: ignore[arg-type]

    play(lambda: of_flow, make, body)


def test_a_gate_that_stays_shut_since_no_engine_takes_the_newest_version_ends_the_run() -> None:
    pool, of_flow, receiver = Pool(), flow("staleness"), Receiver(2)

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle(150)
        assert not running.done(), "no swap has failed"
        pool.members[0].failed_swaps = 1
        of_flow.changed.notify()
        await scene.settle(60)
        pool.members[0].failed_swaps = 0  # one went well
        of_flow.changed.notify()
        await scene.settle(1)
        pool.members[0].failed_swaps = 1
        of_flow.changed.notify()
        await scene.settle(60)
        assert not running.done(), "it counts from the latest failure"
        await scene.settle(60)
        with pytest.raises(EnginesLost, match=r"no engine could take the newest weights for 100 s .* start on v0;"):
            await running

    watch(pool, of_flow, body, receiver)


def test_so_does_one_that_stays_shut_since_the_newest_version_does_not_come_to_any_engine() -> None:
    pool, of_flow = Pool(), flow("staleness")
    pool.members[0].misses_version = True

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle(99)
        assert not running.done()
        await scene.settle(2)
        with pytest.raises(EnginesLost, match=r"no engine could take the newest weights for 100 s"):
            await running

    watch(pool, of_flow, body, Receiver(2))


def test_what_one_that_is_gone_could_not_take_counts_no_more() -> None:
    """The other is behind for as long as an evaluation holds it."""
    pool, of_flow = Pool(Member(), Member(1)), flow("staleness")
    pool.members[1].failed_swaps, pool.members[1].misses_version = 2, True
    pool.members[1].state = EngineState.GONE

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle(500)
        assert not running.done()

    watch(pool, of_flow, body, Receiver(2))


def test_after_the_run_went_back_an_engine_must_take_what_it_goes_on_from() -> None:
    pool, of_flow = Pool(), flow("ahead")
    pool.members[0].version, pool.members[0].failed_swaps, pool.line = Version(0, 3), 1, Line(2)

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle(99)
        assert not running.done()
        await scene.settle(2)
        with pytest.raises(EnginesLost, match="no engine could take the newest weights"):
            await running

    watch(pool, of_flow, body, Receiver(2))


def test_while_another_engine_has_it_or_groups_may_start_the_run_goes_on() -> None:
    for shut, number in (("staleness", 0), ("ahead", 2), (None, 2)):
        pool, of_flow = Pool(), flow(shut)
        pool.members[0].failed_swaps = 5

        async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
            await scene.settle(500)
            assert not running.done()

        watch(pool, of_flow, body, Receiver(number))
