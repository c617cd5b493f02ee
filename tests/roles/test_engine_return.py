"""An engine whose weights stay as they are, a judge's, comes back when it died, and is tried again until it does."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from role_pool import STALL_S, Member, Pool, Scene, play

from headrace.engines.pool_state import EngineState
from headrace.engines.protocol import EngineError
from headrace.roles.engine_return import EngineReturnRole


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


def test_what_fails_is_told_with_its_judge_and_tried_again_after_longer_pauses() -> None:
    pool = Pool(Member())
    pool.judge = "judges/small"
    pool.returns = [EngineError("no process"), MemoryError("no memory")]
    pool.members[0].state, pool.members[0].deaths = EngineState.EJECTED, 2

    async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
        await scene.settle(60)
        assert pool.told == [("come back", 0)] * 3
        assert scene.events == [
            (
                "engine_not_back",
                {"engine": 0, "judge": "judges/small", "message": "engine 0: no process"},
            ),
            ("engine_not_back", {"engine": 0, "judge": "judges/small", "message": "engine 0: no memory"}),
        ]
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
