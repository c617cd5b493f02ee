"""Why nothing is generated any more, as a pool of engines tells it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace.engines.pool import EnginePool
from headrace.engines.protocol import EngineError
from headrace.engines.simulated import SimulatedEngine
from headrace.roles.engine_watch import down_for
from headrace.runtime.virtual import VirtualRuntime, run_virtually


def with_two(body: Callable[[EnginePool, VirtualRuntime], Awaitable[None]], *, returns: bool = False) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        async def again(dead: object, receiver: object) -> SimulatedEngine:
            engine = SimulatedEngine(runtime)
            await engine.start()
            return engine

        engines = [SimulatedEngine(runtime) for _ in range(2)]
        pool = EnginePool(engines, runtime.clock, revive=again if returns else None)
        await pool.start()
        await body(pool, runtime)
        await pool.stop()

    run_virtually(main)


def test_one_that_was_taken_out_is_not_why_nothing_is_generated() -> None:
    async def body(pool: EnginePool, runtime: VirtualRuntime) -> None:
        pool.lose(pool.members[0], EngineError("its node"))
        await pool.dismiss(pool.members[0], "it was taken out of the run")
        assert pool.failure is None
        pool.lose(pool.members[1], EngineError("x"))
        assert str(pool.failure) == "x"
        assert "the engine died: x;" in down_for(pool, 60.0)

    with_two(body)


def test_it_is_that_of_the_one_that_was_lost_last() -> None:
    async def body(pool: EnginePool, runtime: VirtualRuntime) -> None:
        pool.lose(pool.members[1], EngineError("the first"))
        await runtime.clock.sleep(1.0)
        pool.lose(pool.members[0], EngineError("the last"))
        assert str(pool.failure) == "the last"
        assert "the engine died: the last;" in down_for(pool, 60.0)

    with_two(body)


def test_what_an_engine_died_of_is_over_once_another_is_in_its_place() -> None:
    async def body(pool: EnginePool, runtime: VirtualRuntime) -> None:
        pool.lose(pool.members[0], EngineError("the first"))
        await pool.come_back(pool.members[0], None)
        assert pool.members[0].failure is None
        assert "the engine could not take new weights" in down_for(pool, 60.0)

    with_two(body, returns=True)
