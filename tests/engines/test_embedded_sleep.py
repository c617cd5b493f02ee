"""An engine that sleeps gives its memory back for real, and never serves without the newest weights."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from devices import DEVICE
from engines_helpers import collect, prompt, published, reference_logprobs, request, serving, tiny_model
from tensor_bytes import tensor_bytes

from headrace.engines.embedded.cache import KeyValueCache
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.protocol import EngineError, FinishReason, SwapMode, Tag, TokenChunk
from headrace.weights.version import INITIAL, Version

BOTH = (Tag.WEIGHTS, Tag.KV)
SLOTS = 4
KV_BYTES = 3 * 2 * (SLOTS + 1) * 2 * 128 * 8 * 4
"""Layers, keys and values, slots and the spare, heads, tokens, head size, float32."""


def run(body: Any, name: str = "qwen3") -> None:
    async def main() -> None:
        async with serving(tiny_model(name), max_concurrent_sequences=SLOTS) as engine:
            await body(engine)

    asyncio.run(main())


async def begun(engine: EmbeddedEngine, name: str, tokens: int = 60) -> asyncio.Task[TokenChunk]:
    """A request that has been given tokens."""
    before = engine.stats().generated_tokens
    task = asyncio.ensure_future(collect(engine, request(name, prompt(1, 6), tokens)))
    while engine.stats().generated_tokens == before:  # noqa: ASYNC110
        await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_its_memory_is_given_back_and_had_again(name: str) -> None:
    """By a runner with weights of its own, and by the one that computes with the model's."""
    model = tiny_model(name)
    weights = sum(parameter.nbytes for parameter in model.parameters())

    async def body(engine: EmbeddedEngine) -> None:
        new = published(model, INITIAL)
        await collect(engine, request("r", prompt(1, 6), 8))
        awake = tensor_bytes()
        await engine.sleep([Tag.KV])
        without_kv = tensor_bytes()
        await engine.sleep([Tag.WEIGHTS])
        without_both = tensor_bytes()
        assert engine.asleep == (Tag.KV, Tag.WEIGHTS)
        freed = awake - without_kv
        # Of GPT-2 twice as many heads; on a device the places of captured graphs go as well.
        cache = KV_BYTES * (2 if name == "gpt2" else 1)
        assert freed == cache if DEVICE.type == "cpu" else freed >= cache
        assert without_kv - without_both >= weights
        await engine.update(new, SwapMode.RECOMPUTE)
        await engine.wake([Tag.KV])
        # A model whose tensors are used as they were published has none of its own.
        assert tensor_bytes() <= awake
        assert (await collect(engine, request("s", prompt(1, 6), 8))).finish_reason is FinishReason.LENGTH

    run(body, name)


def test_a_cache_that_had_grown_begins_anew() -> None:
    async def body(engine: EmbeddedEngine) -> None:
        answer = await begun(engine, "r", 100)
        await engine.sleep([Tag.KV])
        await engine.wake([Tag.KV])
        whole = await answer
        told = reference_logprobs(tiny_model(), prompt(1, 6), whole.tokens)
        np.testing.assert_allclose(whole.logprobs, told, atol=1e-4)

    run(body)


def test_dropped_weights_come_back_by_an_update_alone_also_of_the_same_version() -> None:
    async def body(engine: EmbeddedEngine) -> None:
        answer = await begun(engine, "r")
        await engine.sleep(BOTH)
        assert engine.rests
        assert engine.version == INITIAL
        with pytest.raises(EngineError, match="weights were dropped when it had v0: `update` brings the newest"):
            await engine.wake(BOTH)
        assert engine.asleep == BOTH
        report = await engine.update(published(tiny_model(), INITIAL), SwapMode.DRAIN)
        assert report is not None
        assert report.version == INITIAL
        assert engine.asleep == (Tag.KV,)
        assert not answer.done()
        await engine.wake(BOTH)
        assert not engine.rests
        assert len((await answer).tokens) == 60

    run(body)


def test_what_is_in_flight_goes_on_under_the_new_weights_from_what_it_has() -> None:
    async def body(engine: EmbeddedEngine) -> None:
        answer = await begun(engine, "r")
        await engine.sleep(BOTH)
        waits = asyncio.ensure_future(collect(engine, request("s", prompt(2, 5), 8)))
        await engine.update(published(tiny_model(seed=1), Version(0, 1)), SwapMode.RECOMPUTE)
        await engine.wake(BOTH)
        whole, fresh = await answer, await waits
        assert set(fresh.versions.tolist()) == {1}
        assert sorted(set(whole.versions.tolist())) == [0, 1]
        assert (np.diff(whole.versions) >= 0).all()
        for number, model in enumerate((tiny_model(), tiny_model(seed=1))):
            told = reference_logprobs(model, prompt(1, 6), whole.tokens)
            those = whole.versions == number
            np.testing.assert_allclose(whole.logprobs[those], told[those], atol=1e-4)

    run(body)


def test_a_pin_is_waited_for() -> None:
    async def body(engine: EmbeddedEngine) -> None:
        pin = engine.pin()
        sleeping = asyncio.ensure_future(engine.sleep(BOTH))
        assert len((await collect(engine, request("r", prompt(1, 6), 8))).tokens) == 8, "it serves whoever holds it"
        assert not engine.asleep
        pin.release()
        await sleeping
        assert engine.asleep == BOTH

    run(body)


@pytest.mark.parametrize("tags", [(Tag.KV,), (Tag.WEIGHTS,), BOTH])
def test_who_waits_can_be_ended_and_hears_of_its_death(tags: Sequence[Tag]) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        first, second = await begun(engine, "r"), asyncio.ensure_future(collect(engine, request("s", prompt(3, 4), 9)))
        await engine.sleep(tags)
        engine.abort(["r"])
        assert (await first).finish_reason is FinishReason.ABORT
        engine.kill("of the test")
        with pytest.raises(EngineError, match="of the test"):
            await second
        assert engine.asleep == ()
        with pytest.raises(EngineError, match="of the test"):
            await engine.wake(tags)

    run(body)


def test_without_room_for_its_cache_it_sleeps_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        answer = await begun(engine, "r")
        await engine.sleep([Tag.KV])
        allocate = KeyValueCache.allocate

        def full(cache: KeyValueCache) -> None:
            raise torch.OutOfMemoryError("no room of the test")

        monkeypatch.setattr(KeyValueCache, "allocate", full)
        with pytest.raises(EngineError, match="no room for its KV cache: no room of the test"):
            await engine.wake([Tag.KV])
        assert engine.rests
        assert engine.failure is None
        monkeypatch.setattr(KeyValueCache, "allocate", allocate)
        await engine.wake([Tag.KV])
        assert len((await answer).tokens) == 60

    run(body)


def test_one_that_sleeps_can_be_stopped() -> None:
    async def body(engine: EmbeddedEngine) -> None:
        answer = await begun(engine, "r")
        await engine.sleep(BOTH)
        await engine.stop()
        assert (await answer).finish_reason is FinishReason.ABORT

    run(body)
