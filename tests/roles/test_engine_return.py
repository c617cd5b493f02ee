"""An engine whose weights stay as they are, a judge's, comes back when it died, and is tried again until it does."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from role_pool import RAISED, STALL_S, Member, Pool, Scene, play, without_lines

from headrace.engines.absent import AbsentEngine
from headrace.engines.pool import EnginePool
from headrace.engines.pool_state import EngineState
from headrace.engines.protocol import Engine, EngineError
from headrace.roles.engine_return import EngineReturnRole
from headrace.weights.plane import WeightReceiver


def returning(pool: Any, body: Any) -> None:
    play(SimpleNamespace, lambda scene: EngineReturnRole(scene.context, pool, pool.members[0]), body)


def test_one_that_died_is_built_anew_once_and_nothing_is_asked_of_one_that_serves() -> None:
    pool = Pool()

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle(3 * STALL_S)
        assert pool.told == []
        assert scene.events == [], "it waits for nothing that ought to come"
        pool.members[0].state, pool.members[0].deaths = EngineState.EJECTED, 1
        pool.changed.notify()
        await scene.settle(0.2)
        assert pool.told == [], "not before a pause"
        await scene.settle(STALL_S)
        assert pool.told == [("come back", 0)]

    returning(pool, body)


def test_what_fails_is_told_with_its_judge_and_tried_again_after_longer_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = Pool(Member())
    pool.judge = "judges/small"
    pool.returns = [EngineError("no process"), MemoryError()]
    pool.members[0].state, pool.members[0].deaths = EngineState.EJECTED, 2

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle(60)
        assert pool.told == [("come back", 0)] * 3
        named = {"engine": 0, "judge": "judges/small"}
        assert [(kind, {**data, "message": without_lines(data["message"])}) for kind, data in scene.events] == [
            ("engine_not_back", {**named, "message": "engine 0: no process"}),
            ("engine_not_back", {**named, "message": f"engine 0: MemoryError{RAISED}"}),
        ]
        (record,) = [each for each in caplog.records if each.name == "headrace.roles.attempts"]
        assert record.getMessage() == "the return of engine 0 failed, and is tried again"
        assert record.exc_info is not None
        assert not running.done()

    returning(pool, body)


def test_one_that_is_gone_is_left() -> None:
    pool = Pool()
    pool.members[0].state = EngineState.GONE

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle(3 * STALL_S)
        assert pool.told == []
        assert not running.done()

    returning(pool, body)


class Stopped(AbsentEngine):
    """Remembers that it was stopped."""

    is_stopped = False

    async def stop(self) -> None:
        self.is_stopped = True


@pytest.mark.parametrize("how", ["ended", "fails", "is made all the same"])
@pytest.mark.parametrize(("after_s", "made"), [(0.1, 0), (5.0, 1)], ids=["in the pause", "while it is made anew"])
def test_one_that_is_taken_out_before_it_is_back_stays_away(after_s: float, made: int, how: str) -> None:
    """A pause of 0.25 s, then 20 s in which it is made."""
    others: list[Stopped] = []
    ended_s: list[float] = []
    told: list[str] = []

    def make(scene: Scene) -> EngineReturnRole:
        async def again(dead: Engine, receiver: WeightReceiver | None) -> Engine:
            others.append(Stopped())
            try:
                await scene.settle(20)
            except asyncio.CancelledError:
                ended_s.append(scene.runtime.clock.now())
                if how == "ended":
                    raise
            if how == "fails":
                raise EngineError("its worker is lost: it has left")
            return others[-1]

        scene.pool = EnginePool([Stopped(), Stopped()], scene.runtime.clock, revive=again)  # type: ignore[attr-defined]
        scene.pool.events.tell_to(lambda kind, data: told.append(kind))  # type: ignore[attr-defined]
        return EngineReturnRole(scene.context, scene.pool, scene.pool.members[1])  # type: ignore[attr-defined]

    async def body(scene: Any, running: asyncio.Task[Any]) -> None:
        pool, member = scene.pool, scene.pool.members[1]
        await pool.start()
        member.engine.failure = EngineError("a fault of its own")
        pool.changed.notify()
        await scene.settle(after_s)
        dismissed_s = scene.runtime.clock.now()
        await pool.dismiss(member, "it was taken out of the run")
        await scene.settle(100)
        pool.lose(member, EngineError("it could not take the newest weights"))
        with pytest.raises(EngineError, match="engine 1 does not come back: it was taken out of the run"):
            await pool.come_back(member, None)
        assert member.state is EngineState.GONE
        assert ended_s == [dismissed_s] * made, "nobody waits until it is made"
        assert [other.is_stopped for other in others] == [how == "is made all the same"] * made
        assert told == ["engine_died", "engine_removed"]
        assert scene.events == [], "nobody is told that one is not back that was taken out"
        assert not running.done()

    play(SimpleNamespace, make, body)
