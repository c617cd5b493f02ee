"""Whose turn it is: who waits for an evaluation to end, and what is left if one is lost as it is put to sleep."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.engines.pool import EnginePool
from headrace.engines.simulated import SimulatedEngine
from headrace.observe.waits import WaitMeter
from headrace.roles.context import RoleContext
from headrace.roles.turns import SharedDevices
from headrace.runtime.signal import Signal
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.runtime.workers import WorkerLost


class Model:
    """In training."""

    def __init__(self) -> None:
        self.sleeps = True
        self.dies = False

    async def sleep(self) -> None:
        if self.dies:
            raise WorkerLost(0, "it died", worker="trainer/0")
        self.sleeps = True

    async def wake(self) -> None:
        self.sleeps = False


class House:
    def __init__(self, runtime: VirtualRuntime, engine: SimulatedEngine) -> None:
        self.runtime = runtime
        self.engine = engine
        self.pool = EnginePool.of([engine], runtime.clock)
        self.models = [Model(), Model()]
        flow: Any = SimpleNamespace(is_sealed=True, changed=Signal())
        table: Any = None
        context = RoleContext(runtime, flow, table, WaitMeter(runtime.clock.now), lambda kind, data: None, 1e6)
        self.turns = SharedDevices(context, self.pool, self.models)

    async def settle(self) -> None:
        await self.runtime.clock.sleep(1.0)


def virtually(body: Callable[[House], Awaitable[None]]) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        engine = SimulatedEngine(runtime)
        await engine.start()
        await body(House(runtime, engine))
        await engine.stop()

    run_virtually(main)


def test_who_is_told_to_stop_waits_for_no_evaluation_that_another_waits_for() -> None:
    """The other, who has its rows sooner, goes on waiting, and has its turn then."""

    async def body(house: House) -> None:
        stopping: list[bool] = []
        pinned = house.pool.pin()
        scorer = house.runtime.spawn(house.turns.of_batch(), "critic")
        await house.settle()
        actor = house.runtime.spawn(house.turns.train(lambda: bool(stopping)), "actor")
        await house.settle()
        assert not scorer.done()
        assert not actor.done()
        stopping.append(True)
        house.turns.look()
        await house.settle()
        assert actor.done()
        assert await actor is False
        assert not scorer.done()
        assert not house.engine.asleep
        pinned.release()
        await scorer
        assert house.engine.asleep
        assert [model.sleeps for model in house.models] == [False, False]

    virtually(body)


@pytest.mark.parametrize("who", [0, 1])
def test_where_one_is_lost_as_it_is_put_to_sleep_the_other_wakes_again(who: int) -> None:
    async def body(house: House) -> None:
        await house.turns.train()
        house.models[who].dies = True
        with pytest.raises(WorkerLost):
            await house.turns.generate()
        house.models[who].dies = False
        assert await house.turns.train()
        assert [model.sleeps for model in house.models] == [False, False]
        assert house.engine.asleep
        await house.turns.generate()
        assert [model.sleeps for model in house.models] == [True, True]
        assert not house.pool.sleep.is_on

    virtually(body)
