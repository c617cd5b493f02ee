"""The simulated engine: what it answers follows from the request, and what it takes from its costs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from headrace.engines.protocol import EngineError, FinishReason, GenerateRequest, SamplingParams, SwapMode, TokenChunk
from headrace.engines.simulated import SimulatedEngine
from headrace.engines.simulated_answers import Answers
from headrace.engines.simulated_costs import EngineCosts, EngineFaults
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.weights.in_process import MemoryPublisher
from headrace.weights.version import INITIAL, Version

COSTS = EngineCosts(slots=4, prefill_s=0.0, step_s=1.0, sequence_s=0.5, receive_s=2.0, flip_s=3.0)
ANSWERS = Answers(mean_tokens=20, spread=0.0)


def request(name: str, key: int = 1, *, most: int = 100, **more: Any) -> GenerateRequest:
    sampling = SamplingParams(max_new_tokens=most, stop_token_ids=(0,))
    return GenerateRequest(name, np.arange(1, 4, dtype=np.int32), sampling, key, **more)


async def ask(engine: SimulatedEngine, asked: GenerateRequest) -> list[TokenChunk]:
    async with aclosing(engine.generate(asked)) as chunks:
        return [chunk async for chunk in chunks]


@dataclass
class Place:
    runtime: VirtualRuntime
    engine: SimulatedEngine
    publisher: MemoryPublisher

    @property
    def now(self) -> float:
        return self.runtime.clock.now()

    async def swap(self, version: Version, mode: SwapMode = SwapMode.RECOMPUTE) -> Any:
        self.publisher.publish(version, [("state", torch.zeros(1))])
        return await self.engine.update(self.publisher.receiver(), mode)


def run(main: Any, costs: EngineCosts = COSTS, **more: Any) -> Any:
    def begin(runtime: VirtualRuntime) -> Coroutine[Any, Any, Any]:
        async def whole() -> Any:
            place = Place(runtime, SimulatedEngine(runtime, costs, ANSWERS, **more), MemoryPublisher())
            await place.engine.start()
            result = await main(place)
            await place.engine.stop()
            return result

        return whole()

    return run_virtually(begin)


def test_an_answer_follows_from_its_request_and_not_from_when_or_with_whom_it_is_served() -> None:
    async def main(place: Place) -> None:
        (alone,) = await ask(place.engine, request("a"))
        together = await asyncio.gather(*(ask(place.engine, request(f"{key}", key)) for key in range(9)))
        assert together[1][0].tokens.tolist() == alone.tokens.tolist()
        assert together[1][0].logprobs.tolist() == alone.logprobs.tolist()
        assert alone.finish_reason is FinishReason.STOP
        assert alone.tokens[-1] == 0
        lengths = {len(chunks[0].tokens) for chunks in together}
        assert len(lengths) > 3

    run(main)


def test_an_answer_that_was_cut_off_goes_on_as_it_would_have() -> None:
    async def main(place: Place) -> None:
        (whole,) = await ask(place.engine, request("a"))
        (first,) = await ask(place.engine, request("b", most=3))
        assert first.finish_reason is FinishReason.LENGTH
        more = replace(request("c"), prompt=np.concatenate([request("c").prompt, first.tokens]))
        (rest,) = await ask(place.engine, more)
        assert np.concatenate([first.tokens, rest.tokens]).tolist() == whole.tokens.tolist()

    run(main)


def test_a_step_takes_as_long_as_its_sequences_make_it_and_others_wait_for_slots() -> None:
    async def main(place: Place) -> tuple[float, float]:
        def asked(name: int) -> GenerateRequest:
            greedy = SamplingParams(max_new_tokens=10)
            return replace(request(f"{name}"), sampling=greedy)

        await asyncio.gather(*(ask(place.engine, asked(name)) for name in range(4)))
        four = place.now
        await asyncio.gather(*(ask(place.engine, asked(name)) for name in range(5)))
        return four, place.now - four

    four, five = run(main)
    assert four == pytest.approx(10 * 2.5)
    assert five == pytest.approx(10 * 2.5 + 10 * 1.0)


@pytest.mark.parametrize("mode", SwapMode)
def test_versions_are_those_of_the_steps_that_sampled(mode: SwapMode) -> None:
    async def main(place: Place) -> tuple[TokenChunk, float]:
        asking = asyncio.create_task(ask(place.engine, replace(request("a"), sampling=SamplingParams(20))))
        await asyncio.sleep(4.25)
        report = await place.swap(Version(0, 1), mode)
        assert report.version == place.engine.version == Version(0, 1)
        assert report.flip_s == 3.0
        (chunk,) = await asking
        return chunk, place.now

    chunk, ended = run(main)
    old = 20 if mode is SwapMode.DRAIN else 7  # received at 6.25: the step until 7 ends first
    assert chunk.versions.tolist() == [0] * old + [1] * (20 - old)
    assert ended == pytest.approx(23.0)


def test_servers_cut_off_what_is_in_flight() -> None:
    async def main(place: Place) -> None:
        asking = asyncio.create_task(ask(place.engine, replace(request("a"), sampling=SamplingParams(20))))
        await asyncio.sleep(4.25)
        await place.swap(Version(0, 1))
        (chunk,) = await asking
        assert chunk.finish_reason is FinishReason.INTERRUPTED
        assert len(chunk.tokens) == 7

    run(main, interrupts=True)


def test_streams_an_abort_a_pin_and_a_floor() -> None:
    async def main(place: Place) -> None:
        engine = place.engine
        chunks = await ask(engine, replace(request("a"), sampling=SamplingParams(10), stream=True))
        assert [len(chunk.tokens) for chunk in chunks] == [4, 4, 2]
        asking = asyncio.create_task(ask(engine, replace(request("b"), sampling=SamplingParams(50))))
        await asyncio.sleep(5.5)
        engine.abort(["b", "nobody"])
        (aborted,) = await asking
        assert (aborted.finish_reason, len(aborted.tokens)) == (FinishReason.ABORT, 6)
        later = asyncio.create_task(ask(engine, request("c", min_version=Version(0, 1))))
        pinned, began = engine.pin(), place.now
        swapping = asyncio.create_task(place.swap(Version(0, 1)))
        await asyncio.sleep(20.0)
        assert engine.version == INITIAL
        assert not later.done()
        pinned.release()
        pinned.release()
        await swapping
        assert place.now == pytest.approx(began + 20 + 2 + 3)
        ((answer),) = await later
        assert set(answer.versions.tolist()) == {1}
        assert await place.engine.update(place.publisher.receiver(), SwapMode.KEEP) is None

    run(main, costs=replace(COSTS, stream_steps=4))


def test_a_dead_engine_tells_everybody() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        engine = SimulatedEngine(runtime, COSTS, ANSWERS, EngineFaults(dies_at=5.0))
        await engine.start()
        with pytest.raises(EngineError, match="request 'a' was lost: it died"):
            await ask(engine, replace(request("a"), sampling=SamplingParams(50)))
        assert engine.failure is not None
        with pytest.raises(EngineError, match="the engine died"):
            await ask(engine, request("b"))

    run_virtually(main)
