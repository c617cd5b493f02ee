"""An evaluation and the number of engines: what is scaled away does not spoil a score."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from role_pool import Scene, play

from headrace.config import TrainConfig
from headrace.controller.scaling import Scaling
from headrace.engines.completions import Asked, complete
from headrace.engines.place import Place
from headrace.engines.pool import EnginePool
from headrace.engines.pool_state import EngineState
from headrace.engines.protocol import Engine, SamplingParams
from headrace.engines.simulated import SimulatedEngine
from headrace.roles.evaluator import EvaluatorRole
from headrace.runtime.workers import Handle
from headrace.weights.in_process import MemoryPublisher
from headrace.weights.version import Version

PROMPT = np.arange(1, 4, dtype=np.int32)


class HeldOut:
    """Six samples of some tokens each, as `Evaluation` draws them: one that fails is counted, and no more."""

    def __init__(self, pool: EnginePool) -> None:
        self.held_out = SimpleNamespace(name="held out", every=None)
        self.begun: list[tuple[int, ...]] = []
        self._pool = pool

    async def run(self, version: Version, place: Place) -> dict[str, Any]:
        self.begun.append(tuple(place.only))
        asked = [
            Asked(f"{len(self.begun)}.{number}", PROMPT, SamplingParams(max_new_tokens=40), number, version, place)
            for number in range(6)
        ]
        ends = await asyncio.gather(*(complete(self._pool, each) for each in asked), return_exceptions=True)
        return {"failed": sum(isinstance(end, Exception) for end in ends)}


class Hires:
    kind = "embedded"

    def __init__(self) -> None:
        self.released: list[int] = []

    async def hire(self) -> tuple[Engine, Handle]:
        raise AssertionError("nobody is to come")

    async def release(self, index: int) -> None:
        self.released.append(index)


class Case:
    """A run's two engines, of which an evaluation holds one."""

    def __init__(self, held: int) -> None:
        self.held = held

    def make(self, scene: Scene) -> EvaluatorRole:
        self.pool = EnginePool([SimulatedEngine(scene.runtime) for _ in range(2)], scene.runtime.clock)
        self.hires = self.pool.hires = Hires()
        self.set: Any = HeldOut(self.pool)
        self.recorded: list[dict[str, Any]] = []
        self.role = EvaluatorRole(
            scene.context, self.pool, [self.set], lambda version, result: self.recorded.append(result), recorded={}
        )
        config = TrainConfig.model_validate({"model": {"path": "m"}, "data": {"train": "t.jsonl"}})
        receiver = MemoryPublisher().receiver()
        self.scaling = Scaling(config, self.pool, receiver, None, lambda kind, data: None, ahead=4)
        return self.role

    def play(self, meanwhile: Any) -> Scene:
        """`meanwhile` while it draws its samples."""
        scenes: list[Scene] = []

        async def body(scene: Scene, running: asyncio.Task[Any]) -> None:
            scenes.append(scene)
            await self.pool.start()
            self.pool.members[1 - self.held].outstanding = 1_000
            evaluating = asyncio.ensure_future(self.role.before())
            while not self.pool.members[self.held].engine.stats().running:
                await scene.settle(0.01)
            await meanwhile()
            await evaluating
            assert not any(member.pins for member in self.pool.members)
            await self.pool.stop()

        play(lambda: SimpleNamespace(is_finished=False, batch=0), self.make, body)
        return scenes[0]


@pytest.mark.parametrize("held", [0, 1])
def test_where_the_engine_that_it_holds_is_taken_out_it_begins_again_and_no_sample_fails(held: int) -> None:
    case = Case(held)

    async def taken_out() -> None:
        await case.pool.dismiss(case.pool.members[held], "it was taken out of the run")

    scene = case.play(taken_out)
    assert [result["failed"] for result in case.recorded] == [0]
    assert case.set.begun == [(held,), (1 - held,)]
    assert scene.kinds == ["evaluation_again"]


@pytest.mark.parametrize("held", [0, 1])
def test_an_engine_that_no_evaluation_holds_is_taken_out_first(held: int) -> None:
    case = Case(held)

    async def scaled() -> None:
        await case.scaling.answer({"scale": {"engines": 1}}, lambda line: None)

    scene = case.play(scaled)
    assert case.hires.released == [1 - held]
    assert case.pool.members[1 - held].state is EngineState.GONE
    assert case.set.begun == [(held,)]
    assert scene.kinds == []
