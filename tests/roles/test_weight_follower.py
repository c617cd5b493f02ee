"""The weight follower has its engine take each version once, tries again what failed, and brings back an engine
that died."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from role_pool import RAISED, STALL_S, Member, Pool, Receiver, Scene, play, without_lines
from scripted_relays import Scripted, forward, made

from headrace.engines.pool_state import EngineState
from headrace.engines.protocol import EngineError, SwapMode, VersionHeld
from headrace.roles.weight_follower import WeightFollowerRole, taken_up
from headrace.weights.plane import WeightError
from headrace.weights.relay.receiver import OverRelays

UPDATE = ("update", 0)


def follow(pool: Any, receiver: Any, body: Any) -> None:
    def make(scene: Scene) -> WeightFollowerRole:
        return WeightFollowerRole(scene.context, pool, pool.members[0], receiver, SwapMode.RECOMPUTE)

    play(SimpleNamespace, make, body)


def test_each_new_version_is_taken_once_and_told() -> None:
    pool, receiver = Pool(), Receiver(0)

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle()
        assert pool.told == []
        for number in (1, 3):
            receiver.number = number
            pool.changed.notify()
            await scene.settle()
        assert pool.told == [UPDATE, UPDATE]
        assert [(kind, data["version"]) for kind, data in scene.events] == [("swap", "v1"), ("swap", "v3")]
        await scene.settle(STALL_S)
        assert scene.kinds == ["swap", "swap", "waiting"]
        assert scene.events[2][1]["message"] == "has waited 1000.0 s for a new version"

    follow(pool, receiver, body)


def test_a_swap_that_fails_is_told_counted_and_tried_again_after_a_pause() -> None:
    pool, receiver, heard = Pool(), Receiver(1), []
    pool.updates = [WeightError("half of it is there")]
    pool.changed.listen(lambda: heard.append(pool.members[0].failed_swaps))

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle(0.01)
        assert pool.told == [UPDATE]
        assert scene.events == [("update_failed", {"version": "v1", "message": "half of it is there"})]
        assert heard == [1], "the engine watch looks at it"
        await scene.settle(60)
        assert pool.told == [UPDATE, UPDATE]
        assert pool.members[0].version.number == 1

    follow(pool, receiver, body)


@pytest.mark.parametrize(
    ("error", "told", "logged"),
    [
        (EngineError("gone"), "gone", 0),
        (MemoryError(), f"MemoryError{RAISED}", 1),
        (KeyError("lm_head"), f"KeyError: 'lm_head'{RAISED}", 1),
        (OSError(5, "input/output error"), f"OSError: [Errno 5] input/output error{RAISED}", 1),
    ],
)
def test_whatever_taking_a_version_raises_is_a_swap_that_failed(
    error: Exception, told: str, logged: int, caplog: pytest.LogCaptureFixture
) -> None:
    pool, receiver = Pool(), Receiver(1)
    pool.updates = [error]

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle(60)
        kind, data = scene.events[0]
        assert (kind, data["version"], without_lines(data["message"])) == ("update_failed", "v1", told)
        assert sum(record.exc_info is not None for record in caplog.records) == logged
        assert pool.members[0].version.number == 1

    follow(pool, receiver, body)


def test_an_evaluation_that_holds_the_version_for_long_is_no_fault() -> None:
    pool, receiver = Pool(), Receiver(1)
    pool.updates = [VersionHeld("has waited 3600.0 s for 1 pins on version v0 to be released")]

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle(60)
        assert scene.kinds[:2] == ["waiting", "swap"]
        assert scene.events[0][1]["message"] == "has waited 3600.0 s for 1 pins on version v0 to be released"
        assert pool.members[0].failed_swaps == 0

    follow(pool, receiver, body)


def test_a_publication_that_cannot_be_looked_at_is_looked_at_again() -> None:
    pool, receiver = Pool(), Receiver(0)
    newest, faults = receiver.latest, [WeightError("LATEST cannot be read")]

    def latest() -> Any:
        if receiver.number and faults:
            raise faults.pop()
        return newest()

    receiver.latest = latest  # type: ignore[method-assign]

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle()
        receiver.number = 1
        pool.changed.notify()
        await scene.settle(60)
        assert scene.events[0] == ("update_failed", {"version": "v1", "message": "LATEST cannot be read"})
        assert pool.members[0].version.number == 1

    follow(pool, receiver, body)


def test_an_engine_that_cannot_take_it_time_and_again_is_built_anew_unless_it_is_the_only_one_that_is_at_work() -> None:
    for load, others, rests, loses in (
        (0, 0, False, True),
        (3, 0, False, False),
        (3, 1, False, True),
        (3, 0, True, True),
    ):
        pool, receiver, heard = Pool(*(Member(index) for index in range(1 + others))), Receiver(1), []
        pool.members[0].load, pool.members[0].engine.rests = load, rests
        pool.updates = [WeightError("no")] * 3
        pool.changed.listen(lambda heard=heard: heard.append(1))

        async def body(scene: Scene, running: asyncio.Task[Any], pool: Any = pool, loses: bool = loses) -> None:
            await scene.settle(100)
            assert (("lose", 0, "it could not take the newest weights: no") in pool.told) is loses
            assert (("come back", 0) in pool.told) is loses

        follow(pool, receiver, body)
        assert len(heard) == (4 if loses else 3)


def test_a_version_that_is_not_where_it_is_taken_from_is_no_failed_swap() -> None:
    """Its relay died: the engine goes on with what it has, and takes the version once the relay has it again."""
    pool, heard = Pool(Member(0), Member(1)), []

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        scripted = Scripted()
        relays, _ = await made(scripted)
        await relays.carry("/first")
        receiver = OverRelays(None, relays).near("engine/0")  # type: ignore[arg-type]
        role = WeightFollowerRole(scene.context, pool, pool.members[0], receiver, SwapMode.RECOMPUTE)  # type: ignore[arg-type]
        relays.changed.listen(pool.changed.notify)
        scripted.lost = {1: "killed"}
        pool.changed.listen(lambda: heard.append(pool.members[0].misses_version))
        follows = scene.runtime.spawn(role.run(), "it follows")
        await scene.settle(60)
        await relays.mend()
        await scene.settle(60)
        assert (pool.told, scene.kinds, pool.members[0].failed_swaps) == ([], [], 0)
        assert heard == [True, True], "the engine watch looks at it, and nobody is woken for nothing"
        forward(relays)
        await relays.mend()
        await scene.settle()
        assert (pool.told, scene.kinds, pool.members[0].misses_version) == ([UPDATE], ["swap"], False)
        follows.cancel()
        await asyncio.gather(follows, return_exceptions=True)

    follow(Pool(), Receiver(), body)


def test_one_that_died_under_a_swap_is_not_told_twice() -> None:
    pool, receiver = Pool(), Receiver(1)

    class Dies(EngineError):
        pass

    pool.updates = [Dies("it died")]
    pool.look = lambda: setattr(pool.members[0], "state", EngineState.GONE) if pool.told else None  # type: ignore[method-assign]

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle(50)
        assert pool.told == [UPDATE]
        assert scene.events == []

    follow(pool, receiver, body)


def test_an_engine_that_died_comes_back_and_each_attempt_that_fails_is_told() -> None:
    pool, receiver = Pool(), Receiver(0)
    pool.members[0].state, pool.members[0].deaths = EngineState.EJECTED, 1
    pool.returns = [MemoryError("no memory"), None]

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle(0.01)
        assert pool.told == [], "after a pause"
        await scene.settle(60)
        assert pool.told == [("come back", 0)] * 2
        ((kind, data),) = scene.events
        assert (kind, data["engine"]) == ("engine_not_back", 0)
        assert without_lines(data["message"]) == f"MemoryError: no memory{RAISED}"

    follow(pool, receiver, body)


def test_the_last_version_is_waited_for_until_an_engine_serves_it() -> None:
    pool, receiver = Pool(), Receiver(0)

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle()
        receiver.number = 1
        waits = asyncio.ensure_future(taken_up(scene.context, pool, receiver))  # type: ignore[arg-type]
        await scene.settle(0)
        assert not waits.done()
        pool.changed.notify()
        await scene.settle()
        pool.changed.notify()
        await scene.settle()
        assert waits.done()

    follow(pool, receiver, body)
