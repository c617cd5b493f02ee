"""The embedded engine as its callers see it."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
from devices import CPU
from engines_helpers import VOCAB, collect, greedy, prompt, published, request, serving, tiny_model
from marked import said

from headrace.config import ConfigError, EngineConfig
from headrace.engines.embedded import engine as engine_module
from headrace.engines.embedded.cache import KeyValueCache
from headrace.engines.embedded.cache_plan import CachePlan, CacheRoom, cache_shape, plan_cache
from headrace.engines.embedded.core import EngineCore
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.embedded.paged_cache import PagedCache
from headrace.engines.embedded.request_state import Sequence
from headrace.engines.protocol import EngineError, FinishReason, RequestError
from headrace.runtime.inline import InlineRuntime
from headrace.weights.version import Version


def test_a_prompt_is_prefilled_once_for_all_its_samples() -> None:
    model, tokens = tiny_model("qwen3"), prompt(1, 13)

    async def run() -> tuple[int, int, list[Any]]:
        async with serving(model, max_concurrent_sequences=4) as engine:
            together = [collect(engine, request(f"r{i}", tokens, 3 + 9 * i, key=i)) for i in range(10)]
            chunks = await asyncio.gather(*together)
            after_group = engine.stats().prefilled_tokens
            stream = engine.generate(request("running", tokens, 60, stream=True))
            await anext(stream)
            await collect(engine, request("late", tokens, 3))
            await stream.aclose()
            return after_group, engine.stats().prefilled_tokens, chunks

    group, late, chunks = asyncio.run(run())
    assert group == 12
    assert late == 24  # once for the new pair
    assert len({tuple(chunk.tokens[:3].tolist()) for chunk in chunks}) > 1


def test_a_long_prompt_is_prefilled_in_chunks_between_decode_steps() -> None:
    model = tiny_model("qwen3")

    async def run() -> tuple[int, Any]:
        async with serving(model, prefill_tokens_per_step=10) as engine:
            stream = engine.generate(request("short", prompt(1, 2), 100, stream=True))
            await anext(stream)
            begin = engine.stats().decode_steps
            long = await collect(engine, request("long", prompt(2, 101), 1, temperature=0))
            steps = engine.stats().decode_steps - begin
            await stream.aclose()
            return steps, long

    steps, long = asyncio.run(run())
    assert steps >= 10
    assert long.tokens.tolist() == greedy(model, prompt(2, 101), 1)


def test_stop_tokens_end_a_sequence_and_are_kept() -> None:
    model, tokens = tiny_model("qwen3"), prompt(1, 5)

    async def run(stops: tuple[int, ...]) -> Any:
        async with serving(model) as engine:
            stopped = collect(engine, request("a", tokens, 20, key=1, stop_token_ids=stops))
            return await asyncio.gather(stopped, collect(engine, request("b", tokens, 20, key=1)))

    whole = asyncio.run(run(()))[1].tokens.tolist()
    at = next(i for i in range(3, 20) if whole[i] not in whole[:i])
    absent = next(i for i in range(VOCAB) if i not in whole)
    first, second = asyncio.run(run((absent, whole[at])))
    assert first.tokens.tolist() == whole[: at + 1]
    assert first.finish_reason is FinishReason.STOP
    assert second.tokens.tolist() == whole
    assert second.finish_reason is FinishReason.LENGTH


def test_the_context_ends_a_sequence_with_length() -> None:
    async def run() -> Any:
        async with serving(tiny_model("qwen3"), max_context=20) as engine:
            return await collect(engine, request("r", prompt(1, 15), 100))

    chunk = asyncio.run(run())
    assert len(chunk.tokens) == 5
    assert chunk.finish_reason is FinishReason.LENGTH


def test_a_stream_gives_the_same_tokens_in_several_chunks() -> None:
    async def run() -> tuple[int, Any, Any]:
        async with serving(tiny_model("qwen3")) as engine:
            parts = [c async for c in engine.generate(request("s", prompt(1, 5), 30, key=3, stream=True))]
            whole = await collect(engine, request("w", prompt(1, 5), 30, key=3))
            return len(parts), np.concatenate([c.tokens for c in parts]), whole.tokens

    count, streamed, whole = asyncio.run(run())
    assert count > 3
    assert streamed.tolist() == whole.tolist()


def test_abort_returns_what_was_sampled_and_frees_the_slot() -> None:
    model = tiny_model("qwen3")

    async def run() -> tuple[Any, Any, Any]:
        async with serving(model, max_concurrent_sequences=2) as engine:
            stream = engine.generate(request("a", prompt(1, 5), 110, stream=True))
            first = await anext(stream)
            stays = asyncio.create_task(collect(engine, request("b", prompt(2, 5), 60, temperature=0)))
            waits = asyncio.create_task(collect(engine, request("c", prompt(3, 5), 60)))
            await asyncio.sleep(0.01)
            engine.abort(["a", "c", "nobody"])
            rest = [chunk async for chunk in stream]
            waited = await waits
            assert rest[-1].finish_reason is FinishReason.ABORT
            assert waited.finish_reason is FinishReason.ABORT
            stayed = await stays
            assert engine.stats().running == engine.stats().waiting == 0
            return first, rest, stayed

    first, rest, stayed = asyncio.run(run())
    assert len(first.tokens) >= 1
    assert 0 < sum(len(chunk.tokens) for chunk in rest) + len(first.tokens) < 110
    assert stayed.tokens.tolist() == greedy(model, prompt(2, 5), 60)


def test_leaving_the_iterator_aborts_and_the_id_may_be_used_again() -> None:
    async def run() -> None:
        async with serving(tiny_model("qwen3"), max_concurrent_sequences=1) as engine:
            stream = engine.generate(request("a", prompt(1, 5), 100, stream=True))
            await anext(stream)
            with pytest.raises(RequestError, match="in use"):
                await collect(engine, request("a", prompt(1, 5), 3))
            await stream.aclose()
            chunk = await collect(engine, request("a", prompt(1, 5), 3))
            assert chunk.finish_reason is FinishReason.LENGTH
            assert engine.stats().generated_tokens < 100

    asyncio.run(run())


@pytest.mark.parametrize(
    ("tokens", "params", "message"),
    [
        ([], {}, "at least one token"),
        ([1, 97], {}, "token id 97 at position 1"),
        ([-1], {}, "token id -1"),
        ([1] * 32, {}, "32 tokens and the context 32"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens"),
        ([1], {"temperature": -1.0}, "temperature"),
        ([1], {"top_p": 0.0}, "top_p"),
        ([1], {"top_k": -2}, "top_k"),
        ([1], {"experts_from": 1}, "experts_from is 1; give the place of a token of the prompt, from 0 to 0"),
    ],
)
def test_bad_requests_are_refused_and_cost_nobody_else(tokens: list[int], params: dict[str, Any], message: str) -> None:
    async def run() -> None:
        async with serving(tiny_model("qwen3"), max_context=32) as engine:
            with pytest.raises(RequestError, match=message):
                await collect(engine, request("bad", tokens, **params))
            assert len((await collect(engine, request("good", [1], 3))).tokens) == 3

    asyncio.run(run())


def test_stop_ends_every_request_with_abort() -> None:
    async def run() -> Any:
        async with serving(tiny_model("qwen3"), max_concurrent_sequences=1) as engine:
            tasks = [asyncio.create_task(collect(engine, request(f"r{i}", prompt(i, 4), 110))) for i in range(3)]
            await asyncio.sleep(0.01)
            await engine.stop()
            with pytest.raises(EngineError, match="not running"):
                await collect(engine, request("later", prompt(1, 4)))
            return await asyncio.gather(*tasks)

    assert [chunk.finish_reason for chunk in asyncio.run(run())] == [FinishReason.ABORT] * 3


def test_one_that_is_stopped_before_it_began_to_serve_ends_like_any_other() -> None:
    async def run() -> None:
        async with serving(tiny_model()) as engine:
            await engine.stop()  # nothing was awaited since it started

    asyncio.run(run())


def test_a_dying_core_fails_its_requests_instead_of_hanging_them() -> None:
    async def run() -> None:
        async with serving(tiny_model("qwen3")) as engine:

            def broken(*_: Any) -> Any:
                raise RuntimeError("the device fell off")

            engine._core._runner.decode = broken  # type: ignore[union-attr, method-assign]
            with pytest.raises(EngineError, match="the device fell off"):
                await collect(engine, request("a", prompt(1, 4)))
            with pytest.raises(EngineError, match="died"):
                await collect(engine, request("b", prompt(1, 4)))

    asyncio.run(run())


class TestMemory:
    """tiny qwen3: 2 x 3 layers x 2 heads x 8 x 4 bytes = 384 bytes a token, 49,152 a sequence of 128."""

    @cached_property
    def config(self) -> Any:
        return tiny_model("qwen3", device=CPU).config

    def test_bytes_are_those_of_the_slots_and_a_spare_one(self) -> None:
        def wanted(**asked: int) -> int:
            return plan_cache(self.config, EngineConfig(**asked), torch.float32).bytes_wanted

        assert wanted(max_concurrent_sequences=10) == 11 * 128 * 384
        assert wanted(max_concurrent_sequences=3, max_context=50) == 4 * 50 * 384

    def test_fewer_slots_where_not_all_fit(self) -> None:
        plan = plan_cache(self.config, EngineConfig(), torch.float32, free_bytes=2 * 6 * 49_152)
        assert (plan.slots, plan.max_context) == (5, 128)
        given = plan_cache(self.config, EngineConfig(kv_cache_gib=150_000 / 2**30), torch.float32)
        assert given.slots == 2

    @pytest.mark.parametrize("paged", [False, True])
    def test_a_cache_takes_what_is_planned_and_no_more_than_there_is(self, paged: bool) -> None:
        shape, room = cache_shape(self.config), 2 * 9 * 49_152
        plan = plan_cache(self.config, EngineConfig(), torch.float32, free_bytes=room, paged=paged)
        cache = (PagedCache if paged else KeyValueCache)(shape, plan, torch.float32, torch.device("meta"))
        assert sum(layer.nbytes for layer in cache.layers) == plan.bytes_wanted <= room // 2
        small = (PagedCache if paged else KeyValueCache)(shape, plan.of_size(6, 9), torch.float32, torch.device("meta"))
        assert sum(layer.nbytes for layer in small.layers) == shape.full_bytes(6, 9, torch.float32, paged=paged)

    def test_pages_are_as_many_as_all_slots_can_fill_or_as_fit(self) -> None:
        """64 tokens each: 24,576 bytes; two for each sequence, and two that are nobody's."""
        plan = plan_cache(self.config, EngineConfig(), torch.float32, free_bytes=10**9, paged=True)
        assert (plan.slots, plan.pages, plan.bytes_wanted) == (64, 128, 130 * 24_576)
        assert plan.page_bytes == 24_576
        plan = plan_cache(self.config, EngineConfig(), torch.float32, free_bytes=2 * 12 * 24_576, paged=True)
        assert (plan.slots, plan.pages, plan.bytes_wanted) == (10, 10, 12 * 24_576)
        plan = plan_cache(
            self.config, EngineConfig(max_context=64), torch.float32, free_bytes=2 * 3 * 24_576, paged=True
        )
        assert (plan.slots, plan.pages) == (1, 1)

    @pytest.mark.parametrize(("paged", "slots"), [(False, 3), (True, 6)])
    def test_an_engine_on_a_device_of_its_own_takes_what_the_rest_leaves_of_it(
        self, monkeypatch: pytest.MonkeyPatch, paged: bool, slots: int
    ) -> None:
        """Of all that the device has, whatever is free just then: half of 20 sequences, of which six are taken. Of the
        four, one is nobody's; of the eight pages of half a sequence, two."""
        monkeypatch.setattr(engine_module, "is_paged", lambda device, model_config: paged)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1, 20 * 49_152))

        async def run() -> int:
            runtime, room = InlineRuntime(), CacheRoom(0.5, 6 * 49_152)
            engine = EmbeddedEngine(tiny_model("qwen3", device=CPU), config=EngineConfig(), runtime=runtime, cache=room)
            await engine.start()
            try:
                return engine.slots
            finally:
                await engine.stop()
                await runtime.close()

        assert asyncio.run(run()) == slots

    def test_the_context_that_is_advised_fits_in_pages(self) -> None:
        with pytest.raises(ConfigError, match=r"98304 bytes of KV cache.*max_context to 64 or less"):
            plan_cache(self.config, EngineConfig(), torch.float32, free_bytes=2 * 3 * 24_576 + 5, paged=True)
        with pytest.raises(ConfigError, match="is 24576; free memory"):
            plan_cache(self.config, EngineConfig(), torch.float32, free_bytes=2 * 24_576, paged=True)

    @pytest.mark.parametrize(
        ("config", "free", "message"),
        [
            ({"kv_cache_gib": 40_000 / 2**30}, 10**9, r"98304 bytes.*1000000000 bytes are free.*raise engine.kv_cache"),
            ({"kv_cache_gib": 2.0}, 10**9, r"2147483648 bytes.*1000000000 bytes are free.*to 0\.47 or less"),
            ({}, 180_000, r"98304 bytes.*180000 bytes free.*max_context to 117"),
            ({"max_context": 129}, 10**9, "has 128 positions"),
        ],
    )
    def test_too_little_memory_names_both_numbers_and_the_mend(
        self, config: dict[str, Any], free: int, message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            plan_cache(self.config, EngineConfig(**config), torch.float32, free_bytes=free)


def test_prefill_and_each_decode_step_are_told() -> None:
    plan = CachePlan(slots=2, max_context=64, bytes_wanted=0)
    core = EngineCore(tiny_model(), plan, 64, Version(0, 0), time.monotonic)
    core.scheduler.add(Sequence(request("r", prompt(1, 9), 5), 64))
    while core.scheduler.in_flight or core.scheduler.waiting:
        before = core.totals.prefilled_tokens, core.totals.decode_steps
        with said() as step:
            core.step()
        passes = (core.totals.prefilled_tokens > before[0]) + core.totals.decode_steps - before[1]
        assert step.units == ["decode_step"] * (1 + passes), "and that it has begun"
    assert core.totals.decode_steps == 5
    with said() as prepared:
        core.prepare(published(tiny_model(seed=1), Version(0, 1)))
    assert prepared.units == ["chunk"]


@pytest.mark.parametrize("how", ["it is killed", "a step fails"])
def test_a_dead_engine_holds_none_of_its_memory(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its successor needs it, and why it died is told as long as it is there."""

    monkeypatch.setattr(engine_module.logger, "disabled", True)  # pytest keeps what is logged, with its frames

    def fails(core: EngineCore) -> None:
        cause = ValueError("of the device")
        raise RuntimeError("of the test") from cause

    async def run() -> None:
        async with serving(tiny_model("qwen3"), max_concurrent_sequences=2) as engine:
            core = weakref.ref(engine._core)
            if how == "a step fails":
                monkeypatch.setattr(EngineCore, "step", fails)
            answer = asyncio.ensure_future(collect(engine, request("r", prompt(1, 5), 50)))
            await asyncio.sleep(0)
            if how == "it is killed":
                engine.kill("of the test")
            with pytest.raises(EngineError if how == "it is killed" else RuntimeError, match="of the test"):
                await answer
            del answer
            for _ in range(100):
                if core() is None:
                    break
                await asyncio.sleep(0.01)
            assert core() is None
            assert "of the test" in str(engine.failure)
            with pytest.raises(EngineError, match="the engine died: of the test"):
                await collect(engine, request("late", prompt(1, 5), 1))

    gc.disable()  # nobody waits for a collection
    try:
        with suppress(EngineError):
            asyncio.run(run())
    finally:
        gc.enable()
