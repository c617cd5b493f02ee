"""What an evaluation holds: only its version answers, whatever becomes of the engines that were chosen for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from headrace.engines.admission import AnyLineage, route
from headrace.engines.completions import Asked, Completion, complete
from headrace.engines.place import Place
from headrace.engines.pool import EnginePool
from headrace.engines.pool_state import EngineState, EngineView
from headrace.engines.protocol import EngineError, SamplingParams, SwapMode
from headrace.engines.simulated import SimulatedEngine
from headrace.engines.simulated_answers import Answers
from headrace.engines.simulated_costs import EngineCosts, EngineFaults
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.weights.in_process import MemoryPublisher
from headrace.weights.plane import WeightReceiver
from headrace.weights.version import Version

COSTS = EngineCosts(slots=4, prefill_s=0.0, step_s=1.0, sequence_s=0.0, receive_s=1.0, flip_s=1.0)
DIES_AT = 30.0
SEVEN, NINE = Version(0, 7), Version(0, 9)


class Unheard(SimulatedEngine):
    """Where nobody has heard yet which version it took, as of an engine that is elsewhere."""

    said: Version | None = None

    @property
    def version(self) -> Version:
        return self.said or self._version


@dataclass
class House:
    pool: EnginePool
    engines: list[Unheard]
    runtime: VirtualRuntime
    publisher: MemoryPublisher

    def publish(self, version: Version) -> None:
        self.publisher.publish(version, [("state", torch.zeros(1))])

    async def swap(self, index: int) -> None:
        await self.pool.update(self.pool.members[index], self.publisher.receiver(), SwapMode.RECOMPUTE)

    def asks(self, name: str, place: Place) -> asyncio.Future[Completion]:
        prompt, sampling = np.array([3, 1, 4], np.int32), SamplingParams(max_new_tokens=40)
        asked = Asked(name, prompt, sampling, noise_key=1, minimum=place.version, place=place)
        return asyncio.ensure_future(complete(self.pool, asked))


def with_three(body: Callable[[House], Awaitable[None]]) -> None:
    """Engines at version 7, of which the first dies after half a minute, and comes back with the newest version."""

    async def main(runtime: VirtualRuntime) -> None:
        async def again(dead: Any, receiver: WeightReceiver | None) -> Any:
            engine = SimulatedEngine(runtime, COSTS, Answers())
            await engine.start()
            await engine.update(house.publisher.receiver(), SwapMode.RECOMPUTE)
            return engine

        faults = [EngineFaults(dies_at=DIES_AT), EngineFaults(), EngineFaults()]
        engines = [Unheard(runtime, COSTS, Answers(), fault) for fault in faults]
        pool = EnginePool(engines, runtime.clock, revive=again, return_deadline_s=600.0)
        house = House(pool, engines, runtime, MemoryPublisher())
        house.publish(SEVEN)
        await pool.start(None, house.publisher.receiver())
        await body(house)
        await pool.stop()

    run_virtually(main)


def test_one_that_came_back_with_a_newer_version_answers_nothing_of_it() -> None:
    async def body(house: House) -> None:
        pool = house.pool
        pinned = pool.pin(2)
        assert (pinned.version, pinned.place.only) == (SEVEN, (0, 1))
        house.publish(NINE)
        await house.swap(2)
        early = [house.asks(f"early{number}", pinned.place) for number in range(4)]
        await house.runtime.clock.sleep(5.0)
        assert {house.engines[index].stats().running for index in (0, 1)} == {2}
        await house.runtime.clock.sleep(DIES_AT)
        assert pool.views()[0].state is EngineState.EJECTED
        await pool.come_back(pool.members[0], house.publisher.receiver())
        assert pool.members[0].version == NINE
        assert pool.route(SEVEN.number, pinned.place) is pool.members[1]
        assert pool.route(SEVEN.number, pinned.place, excluded=(1,)) is None
        late = [house.asks(f"late{number}", pinned.place) for number in range(4)]
        for completion in await asyncio.gather(*early, *late):
            assert completion.versions.tolist() == [7] * 40
        assert not pinned.is_lost
        pinned.release()

    with_three(body)


def test_one_that_swapped_before_it_heard_of_the_pin_is_asked_no_more_and_what_it_gave_is_sampled_again() -> None:
    async def body(house: House) -> None:
        place = Place(SEVEN, only=(1, 2))
        house.publish(NINE)
        house.engines[1].said = SEVEN
        await house.swap(1)
        asked = [house.asks(f"{number}", place) for number in range(2)]
        await house.runtime.clock.sleep(10.0)
        house.engines[1].said = None
        for completion in await asyncio.gather(*asked):
            assert completion.versions.tolist() == [7] * 40
        assert house.pool.route(SEVEN.number, place) is house.pool.members[2]

    with_three(body)


def test_it_is_lost_once_no_engine_is_left_at_its_version() -> None:
    async def body(house: House) -> None:
        pinned = house.pool.pin(2)
        house.pool.lose(house.pool.members[0], EngineError("killed"))
        assert not pinned.is_lost
        house.engines[1]._version = NINE
        assert house.pool.route(SEVEN.number, pinned.place) is None
        assert pinned.is_lost
        pinned.release()

    with_three(body)


@pytest.mark.parametrize("other", [Version(0, 6), Version(0, 8), Version(1, 7)])
def test_a_version_is_branch_and_number(other: Version) -> None:
    engines = [
        EngineView(0, EngineState.SERVING, other),
        EngineView(1, EngineState.SERVING, SEVEN, outstanding=9),
        EngineView(2, EngineState.SERVING, SEVEN),
    ]
    assert route(engines, AnyLineage(), 5, only=(0, 1), exactly=SEVEN) == 1
    assert route(engines, AnyLineage(), 5, only=(0,), exactly=SEVEN) is None
