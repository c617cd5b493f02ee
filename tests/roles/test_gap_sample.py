"""The gap sample: when it is drawn, what of it counts, and that nothing waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rollout_helpers import Hurried, ScriptedEngine, chunk, dead, hangs, ids, settings

from headrace.algorithms.kept_sets import KeptSets
from headrace.engines.pool import EnginePool
from headrace.engines.protocol import FinishReason, GenerateRequest, SamplingParams, TokenChunk
from headrace.experience.prompts.dataset import Prompt, PromptDataset
from headrace.models.packing import MicroBatch, PackRow
from headrace.observe.waits import WaitMeter
from headrace.roles.actors.batch_stats import FreshRule
from headrace.roles.actors.gap_sample import GapSampler
from headrace.roles.context import RoleContext
from headrace.rollout.policy import noise_key
from headrace.runtime.inline import SystemClock
from headrace.runtime.signal import Signal
from headrace.training.gap import measure
from headrace.weights.version import Lineage, Version

FRESH = FreshRule(Lineage(0, {0: 2**62}))


class Stage:
    """A sampler, its engine, and the events that it reported."""

    def __init__(self, engine: ScriptedEngine, prompts: int = 6, **changes: Any) -> None:
        self.engine = engine
        self.pool = EnginePool.of([engine], Hurried())
        self.events: list[dict[str, Any]] = []
        self.warned = asyncio.Event()
        self.flow = SimpleNamespace(is_finished=False, changed=Signal())
        clock = SystemClock()
        context = RoleContext(
            runtime=SimpleNamespace(clock=clock),
            flow=self.flow,
            table=None,
            waits=WaitMeter(clock.now),
            report=self._report,
            stall_timeout_s=60.0,
        )
        dataset = PromptDataset([Prompt(str(i), f"p{i}", {}) for i in range(prompts)])
        self.sampler = GapSampler(
            context, self.pool, replace(settings(engine, **changes), engines=self.pool), dataset, FRESH
        )

    def _report(self, kind: str, data: dict[str, Any]) -> None:
        self.events.append({"kind": kind, **data})
        self.warned.set()

    async def at(self, number: int) -> None:
        """The engine has taken version `number`, and what follows from it has happened."""
        self.engine.version = Version(0, number)
        self.flow.changed.notify()
        for _ in range(50):
            await asyncio.sleep(0)


def on_stage(stage: Stage, play: Callable[[Stage], Awaitable[None]]) -> None:
    async def run() -> None:
        role = asyncio.create_task(stage.sampler.run())
        await play(stage)
        stage.flow.is_finished = True
        stage.flow.changed.notify()
        await asyncio.wait_for(role, 10)

    asyncio.run(asyncio.wait_for(run(), 20))


def of_the_present(engine: ScriptedEngine) -> Callable[[GenerateRequest], TokenChunk]:
    """Eight tokens of the version that the engine has when it is asked."""
    return lambda request: chunk(ids("abcdefgh"), FinishReason.LENGTH, engine.version)


def present_engine() -> ScriptedEngine:
    engine = ScriptedEngine()
    engine._script = (of_the_present(engine),)
    return engine


def tokens_of(rows: list[PackRow]) -> list[int]:
    return [int(row.mask.sum()) for row in rows]


def test_four_prompts_of_eight_tokens_after_each_twentieth_version() -> None:
    async def play(stage: Stage) -> None:
        await stage.at(19)
        assert stage.engine.requests == []
        await stage.at(20)
        assert len(stage.engine.requests) == 4
        rows = stage.sampler.rows(20)
        assert tokens_of(rows) == [8, 8, 8, 8]
        assert [row.tokens.tolist() for row in rows] == [ids(f"p{i}abcdefgh").tolist() for i in (4, 5, 0, 1)]
        assert stage.sampler.rows(20) == [], "offered once"
        await stage.at(21)
        await stage.at(39)
        assert len(stage.engine.requests) == 4
        await stage.at(41)
        assert len(stage.engine.requests) == 8, "a version may be passed over"

    stage = Stage(present_engine())
    on_stage(stage, play)
    assert stage.events == []
    request = stage.engine.requests[0]
    assert request.min_version == Version(0, 20)
    assert request.sampling.max_new_tokens == 8
    assert (request.sampling.top_p, request.sampling.temperature) == (1.0, 1.0), "as training samples"


def test_its_noise_is_that_of_no_training_group() -> None:
    async def play(stage: Stage) -> None:
        await stage.at(20)

    stage = Stage(present_engine())
    on_stage(stage, play)
    keys = {request.noise_key for request in stage.engine.requests}
    assert len(keys) == 4
    assert keys == {noise_key(7, (2**31 - 2, position, 0), 0, 0) for position in (4, 5, 0, 1)}


def test_fewer_prompts_than_four_are_each_asked_once() -> None:
    async def play(stage: Stage) -> None:
        await stage.at(20)
        assert tokens_of(stage.sampler.rows(20)) == [8, 8]

    on_stage(Stage(present_engine(), prompts=2), play)


def test_tokens_of_another_version_do_not_count() -> None:
    """The engine swapped in the midst: the first five tokens are of version 20, the others of 21."""
    torn = chunk(ids("abcdefgh"), FinishReason.LENGTH, Version(0, 20))
    torn.versions[5:] = 21

    async def play(stage: Stage) -> None:
        await stage.at(20)
        rows = stage.sampler.rows(21)
        assert tokens_of(rows) == [3, 3, 3, 3]
        assert rows[0].mask.tolist() == [False] * 7 + [True] * 3

    on_stage(Stage(ScriptedEngine(lambda request: torn)), play)


def test_under_truncated_sampling_the_trainer_gets_the_kept_sets() -> None:
    """Without them it would take the kept mass for a mismatch."""
    response = ids("abcdefgh")
    sets = np.stack([response, response + 1], axis=1)
    kept = KeptSets.of(sets.ravel(), np.full(8, 2), 200)

    async def play(stage: Stage) -> None:
        await stage.at(20)
        rows = stage.sampler.rows(20)
        assert len(rows) == 4
        for row in rows:
            assert row.kept is not None
            found, counts = row.kept.ids()
            assert counts.tolist() == [0, 0] + [2] * 8
            assert found.tolist() == sets.ravel().tolist()

    engine = ScriptedEngine(lambda request: replace(chunk(response, FinishReason.LENGTH, engine.version), kept=kept))
    on_stage(Stage(engine, sampling=SamplingParams(max_new_tokens=16, top_k=2), return_kept=True), play)


def test_a_sample_that_came_too_late_is_one_event_and_is_drawn_again() -> None:
    async def play(stage: Stage) -> None:
        await stage.at(20)
        assert stage.sampler.rows(21) == []
        await stage.at(21)
        assert len(stage.engine.requests) == 8
        assert stage.sampler.rows(22) == []
        await stage.at(22)
        assert tokens_of(stage.sampler.rows(22)) == [8, 8, 8, 8]
        await stage.at(23)
        assert len(stage.engine.requests) == 12, "measured for these twenty batches"

    stage = Stage(present_engine())
    on_stage(stage, play)
    assert stage.events == [
        {
            "kind": "gap_sample_missed",
            "version": "v20",
            "message": "it came too late: batch 21 is trained, with newer weights; another will be drawn",
        }
    ]


def test_nothing_waits_for_a_sample_that_the_engine_does_not_serve() -> None:
    async def play(stage: Stage) -> None:
        await stage.at(20)
        assert stage.sampler.rows(20) == []
        await stage.at(21)
        assert len(stage.engine.requests) == 4, "it still waits for its place"
        await asyncio.wait_for(stage.warned.wait(), 10)
        # Each of the four has a deadline of its own, and none is looked at meanwhile.
        time.sleep(0.02)  # noqa: ASYNC251
        await stage.at(22)
        assert len(stage.engine.requests) == 8, "its deadline has passed: the present version is asked"
        stage.engine._script = (of_the_present(stage.engine),)

    stage = Stage(ScriptedEngine(hangs), request_timeout_s=0.05)
    on_stage(stage, play)
    assert len(stage.events) == 1
    assert "giving up" in stage.events[0]["message"]
    assert len(stage.engine.aborted) == 8


def test_a_dead_engine_is_asked_once_a_version() -> None:
    async def play(stage: Stage) -> None:
        for number, asked in ((20, 12), (20, 12), (21, 24)):  # three times for each of four prompts
            await stage.at(number)
            while len(stage.engine.requests) < asked:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        await asyncio.sleep(0.05)
        assert len(stage.engine.requests) == 24

    stage = Stage(ScriptedEngine(dead))
    on_stage(stage, play)
    assert [event["message"] for event in stage.events] == ["the engine died"]


def row(length: int, fresh: list[int]) -> PackRow:
    mask = np.zeros(length, dtype=np.bool_)
    mask[fresh] = True
    return PackRow(np.arange(length, dtype=np.int32), mask, {"logprobs": np.full(length, -0.5, dtype=np.float32)})


@pytest.mark.parametrize(("max_tokens", "passes"), [(100, 1), (6, 2), (1, 3)])
def test_the_gap_by_hand(max_tokens: int, passes: int) -> None:
    """The trainer says -id / 10: apart from -0.5 by 0.3 at id 2, 0.1 at 4, 0.2 at 3, and 0.4 at 1."""
    scored = []

    def score(micro: MicroBatch) -> torch.Tensor:
        scored.append(micro)
        return -micro.tokens.float() / 10

    rows = [row(5, [2, 4]), row(4, [3]), row(2, [1])]
    gap = measure(rows, max_tokens, score)
    assert gap is not None
    assert (gap.tokens, gap.sum_abs, gap.max_abs) == (4, pytest.approx(1.0), pytest.approx(0.4))
    assert len(scored) == passes


def test_no_rows_have_no_gap() -> None:
    def score(micro: MicroBatch) -> torch.Tensor:
        raise AssertionError("nothing to score")

    assert measure([], 10, score) is None
