"""Engines on the trainer's devices: lent while it waits, and had back in time, whatever they are at."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.engines.completions import Asked, complete
from headrace.engines.place import Place
from headrace.engines.pool import EnginePool
from headrace.engines.pool_state import EngineState
from headrace.engines.protocol import EngineError, FinishReason, GenerateRequest, SamplingParams, Tag
from headrace.engines.simulated import SimulatedEngine
from headrace.engines.simulated_costs import EngineCosts, EngineFaults
from headrace.observe.waits import WaitMeter
from headrace.roles import lending
from headrace.roles.context import RoleContext
from headrace.roles.lending import Lending
from headrace.roles.lending_rule import LendingRule, Lent
from headrace.runtime.signal import Signal
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.runtime.workers import WorkerLost
from headrace.weights.version import INITIAL, Version

COSTS = EngineCosts(slots=4)
ALL = len(Tag)


class Model:
    """In training."""

    def __init__(self) -> None:
        self.sleeps = True

    async def sleep(self) -> None:
        self.sleeps = True

    async def wake(self) -> None:
        self.sleeps = False


class House:
    """Engine 0 has a device of its own, engine 1 the trainer's."""

    def __init__(self, runtime: VirtualRuntime, engines: list[SimulatedEngine], kill: Any = None) -> None:
        self.runtime = runtime
        self.engines = engines
        self.killed: list[int] = []
        self.pool = EnginePool(engines, runtime.clock, lent=1, kill=self.kill, return_deadline_s=100.0)
        for member in self.pool.members:
            member.state = EngineState.SERVING
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.flow: Any = SimpleNamespace(
            is_sealed=False, is_finished=False, changed=Signal(), batch=0, missing_groups=4
        )
        self.pool.changed.listen(self.flow.changed.notify)
        table: Any = None
        context = RoleContext(
            runtime, self.flow, table, WaitMeter(runtime.clock.now), lambda *event: self.events.append(event), 1e6
        )
        self.activity = context.activity
        self.model = Model()
        self.lending = Lending(context, self.pool, [self.model], LendingRule(1, 1), groups=4)

    def knows(self) -> None:
        """The last group takes half a second, and the way back two."""
        self.lending._rule.lent(Lent(seconds=10.0, begin_s=None, share=0.5, back_s=2.0, left_s={1: 0.5}))

    def lacks(self, groups: int) -> None:
        """The batch."""
        self.flow.missing_groups, self.flow.is_sealed = groups, not groups
        self.flow.changed.notify()

    async def kill(self, index: int, reason: str) -> None:
        self.killed.append(index)

    def asked(self, name: str, home: int, tokens: int = 400) -> asyncio.Task[Any]:
        """A completion, of an engine of its own."""
        asked = Asked(
            name, np.arange(1, 9, dtype=np.int32), SamplingParams(tokens), 7, INITIAL, Place(INITIAL, home=home)
        )
        return asyncio.ensure_future(complete(self.pool, asked))

    async def passes(self, seconds: float) -> None:
        await self.runtime.clock.sleep(seconds)


def virtually(body: Callable[[House], Awaitable[None]], **faults: Any) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        engines = [
            SimulatedEngine(runtime, COSTS),
            SimulatedEngine(runtime, COSTS, faults=EngineFaults(**faults)),
        ]
        for engine in engines:
            await engine.start()
        await body(House(runtime, engines))
        for engine in engines:
            with suppress(EngineError):
                await engine.stop()

    run_virtually(main)


def test_what_a_lent_engine_has_in_flight_goes_on_elsewhere_with_its_tokens() -> None:
    async def body(house: House) -> None:
        alone = await house.asked("alone", 0)
        before = house.pool.stats().generated_tokens
        cut = house.asked("cut", 1)
        await house.passes(2.0)
        assert house.model.sleeps
        until = round(house.runtime.clock.now(), 6)
        assert await house.lending.train()
        assert not house.model.sleeps
        assert len(house.engines[1].asleep) == ALL
        assert not cut.done()
        found = await cut
        for name in ("tokens", "logprobs", "versions"):
            assert np.array_equal(getattr(found, name), getattr(alone, name))
        assert house.pool.stats().generated_tokens - before == len(alone.tokens)
        ((kind, event),) = house.events
        assert kind == "lent"
        assert 0 < event["tokens"] < len(alone.tokens)
        assert event["sent_away_tokens"] == 8 + event["tokens"]
        assert event["share"] == event["tokens"] / (event["tokens"] + len(alone.tokens))
        assert (event["from"], event["until"]) == (0.0, until)

    virtually(body)


def test_it_serves_nobody_until_it_is_lent_again() -> None:
    """Not even who has not heard of it yet."""

    async def body(house: House) -> None:
        await house.lending.train()
        request = GenerateRequest("late", np.arange(1, 9, dtype=np.int32), SamplingParams(8), 7)
        async with aclosing(house.engines[1].generate(request)) as chunks:
            assert [chunk.finish_reason async for chunk in chunks] == [FinishReason.INTERRUPTED]
        assert house.pool.route(0, Place(INITIAL, home=1)) is house.pool.members[0]
        assert house.pool.members[1].away

    virtually(body)


def test_a_lent_engine_that_dies_holds_nobody_and_comes_back_when_it_is_lent() -> None:
    async def body(house: House) -> None:
        cut = house.asked("cut", 1)
        await house.passes(1.0)
        house.engines[1]._faults = EngineFaults(dies_at=house.runtime.clock.now())
        await house.passes(1.0)
        began = house.runtime.clock.now()
        await house.lending.train()
        assert house.runtime.clock.now() == began
        assert not house.model.sleeps
        assert len((await cut).tokens) > 0
        assert house.pool.members[1].state is EngineState.GONE  # nobody brings one back here
        house.flow.batch = 1
        house.lending.trained()
        assert not house.pool.lending.holds_back

    virtually(body)


def test_one_that_does_not_sleep_in_time_is_lost_and_its_process_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "TAKE_BACK_S", 5.0)

    async def never(tags: Any, *, sends_away: bool = False) -> None:
        await asyncio.Event().wait()

    async def body(house: House) -> None:
        house.engines[1].sleep = never  # type: ignore[method-assign]
        began = house.runtime.clock.now()
        await house.lending.train()
        assert house.runtime.clock.now() - began == 5.0
        assert house.killed == [1]
        assert not house.model.sleeps
        assert not house.pool.members[1].is_up

    virtually(body)


def test_one_that_is_being_made_anew_when_its_time_is_over_is_not_waited_for() -> None:
    async def body(house: House) -> None:
        member, killed = house.pool.members[1], asyncio.Event()

        async def revive(dead: Any, receiver: Any) -> Any:
            await killed.wait()
            raise EngineError("its process was ended")

        async def kill(index: int, reason: str) -> None:
            killed.set()

        member.revive, house.pool.lending._kill = revive, kill
        member.state = EngineState.EJECTED
        returns = asyncio.ensure_future(house.pool.come_back(member, None))
        await house.passes(1.0)
        assert member.state is EngineState.STARTING
        began = house.runtime.clock.now()
        await house.lending.train()
        assert house.runtime.clock.now() == began
        assert not house.model.sleeps
        with pytest.raises(EngineError, match="ended"):
            await returns

    virtually(body)


def test_those_that_train_have_rows_of_a_whole_batch_while_it_is_lent() -> None:
    async def body(house: House) -> None:
        assert house.lending.holds_rows
        scorer = house.runtime.spawn(house.lending.of_batch(), "critic")
        await house.passes(1.0)
        assert not scorer.done()
        house.flow.is_sealed = True
        house.flow.changed.notify()
        await scorer
        assert not house.model.sleeps
        assert not house.lending.holds_rows
        assert not house.activity.lent

    virtually(body)


def test_the_way_back_begins_before_the_batch_is_there_and_rows_come_behind_it() -> None:
    async def body(house: House) -> None:
        house.knows()
        scorer = house.runtime.spawn(house.lending.of_batch(), "critic")
        house.lacks(2)
        await house.passes(1.0)
        assert house.model.sleeps
        house.lacks(1)
        began = house.runtime.clock.now()
        await house.passes(1.5)
        assert not house.model.sleeps
        assert len(house.engines[1].asleep) == ALL
        assert not house.activity.lent
        assert house.lending.holds_rows
        assert not scorer.done()
        house.lacks(0)
        await scorer
        assert house.runtime.clock.now() == began + 1.5
        assert not house.lending.holds_rows
        ((_, event),) = house.events
        assert (event["until"], event["early_s"]) == (began, 1.5)
        assert 0 < event["back_s"] < 1.5
        house.knows()
        house.flow.batch = 1
        house.lacks(1)
        house.lending.trained()
        await house.lending.generate()
        assert not house.model.sleeps, "for one group it is not worth it"
        house.lacks(4)
        house.lending.trained()
        await house.lending.generate()
        assert house.model.sleeps

    virtually(body)


def test_it_is_lent_again_if_nobody_is_left_who_makes_the_rest() -> None:
    async def body(house: House) -> None:
        house.knows()
        house.lacks(1)
        await house.passes(1.0)
        assert not house.model.sleeps
        house.pool.members[0].state = EngineState.GONE
        house.pool.changed.notify()
        await house.passes(1.0)
        assert house.model.sleeps
        assert not house.pool.members[1].away
        assert house.activity.lent
        house.pool.members[0].state = EngineState.SERVING
        house.lacks(1)
        await house.passes(1.0)
        assert house.model.sleeps, "until the batch is there"
        house.lacks(0)
        await house.lending.train()
        assert not house.model.sleeps

    virtually(body)


def test_a_model_that_is_lost_on_the_early_way_back_is_told_to_whoever_trains() -> None:
    async def body(house: House) -> None:
        wake, lost = house.model.wake, WorkerLost(0, "killed", worker="trainer/0")

        async def dies() -> None:
            raise lost

        house.knows()
        house.model.wake = dies  # type: ignore[method-assign]
        house.lacks(1)
        await house.passes(1.0)
        house.lacks(0)
        with pytest.raises(WorkerLost, match="trainer/0"):
            await house.lending.train()
        assert house.lending.holds_rows
        house.model.wake = wake  # type: ignore[method-assign]
        await house.lending.train()
        assert not house.model.sleeps
        assert not house.lending.holds_rows

    virtually(body)


def test_what_is_ready_already_is_no_time_to_lend_in() -> None:
    async def body(house: House) -> None:
        await house.passes(60.0)
        await house.lending.train()
        house.flow.is_sealed = True
        house.lending.trained()
        await house.lending.generate()
        assert not house.model.sleeps
        house.flow.is_sealed = False
        house.lending.trained()
        await house.lending.generate()
        assert house.model.sleeps
        assert not house.pool.members[1].away

    virtually(body)


def test_groups_of_the_next_batch_are_held_back_for_it_and_not_for_long() -> None:
    """Of four groups two may begin on the other engine before it serves; after what lending is expected to give, or 30
    s, all."""

    def begins(house: House) -> Place | None:
        place = house.pool.admit(lambda number: True, 100)
        if place is not None:
            house.pool.taken(place).__enter__()
        return place

    async def body(house: House) -> None:
        made = house.asked("made", 1)
        await house.passes(10.0)
        await house.lending.train()
        await made
        house.lending.trained()
        assert [begins(house) is not None for _ in range(3)] == [True, True, False]
        gives = house.lending._rule.gives_s
        assert 0 < gives < lending.ON_THE_WAY_S
        await house.passes(gives - 0.1)
        assert begins(house) is None
        await house.passes(0.2)
        assert begins(house) is not None

    virtually(body)


def test_no_evaluation_is_on_it_and_its_version_is_not_the_runs() -> None:
    async def body(house: House) -> None:
        house.engines[1]._version = Version(0, 3)
        assert house.pool.version == INITIAL
        pinned = house.pool.pin(2)
        assert pinned.place.only == (0,)
        pinned.release()
        house.pool.members[0].state = EngineState.GONE
        assert not house.pool.serves_line

    virtually(body)
