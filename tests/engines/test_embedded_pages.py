"""Keys and values in pages: who has which, and that answers are those of an engine whose slots are whole."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from devices import DEVICE
from engines_helpers import collect, prompt, request, tiny_model, until

from headrace.config import EngineConfig
from headrace.engines.embedded.cache_plan import CachePlan, CacheShape, cache_shape
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.embedded.paged_cache import PagedCache
from headrace.engines.embedded.pages import PageTable
from headrace.engines.embedded.runners.choice import choose_runner
from headrace.engines.embedded.runners.fused_runner import FusedRunner
from headrace.engines.embedded.runners.slot_attention import decode_attention, decode_bias
from headrace.engines.embedded.storage import Copy
from headrace.engines.protocol import EngineError
from headrace.runtime.inline import InlineRuntime

CPU = torch.device("cpu")


def test_whole_pages_are_shared_and_the_last_is_copied() -> None:
    table = PageTable(slots=3, pages=8, page_tokens=4)
    table.extend(0, 10)
    assert table.slots[0] == [0, 1, 2]
    assert table.free == 5
    assert table.lacks(1, 12, shared=9) == 1  # of three pages two are shared
    assert table.share(0, 1, 9) == [Copy(2, 3, 1)]
    assert table.slots[1] == [0, 1, 3]
    assert table.share(0, 2, 8) == []
    table.extend(2, 9)
    assert table.slots[2] == [0, 1, 4]
    assert table.free == 3
    table.release(0)
    assert table.free == 4  # the others have the first two
    table.release(1)
    table.release(2)
    assert table.free == 8


def test_a_slot_that_has_pages_is_given_no_others() -> None:
    table = PageTable(slots=2, pages=4, page_tokens=4)
    table.extend(0, 4)
    table.extend(1, 4)
    for give in (table.share, table.move):
        with pytest.raises(RuntimeError, match=r"^slot 1 is not empty: it has the pages \[1\]$"):
            give(0, 1, 4)
    assert table.slots == [[0], [1]]


def test_a_slot_that_moves_keeps_its_pages() -> None:
    table = PageTable(slots=2, pages=3, page_tokens=4)
    table.extend(1, 5)
    assert table.move(1, 0, 5) == []
    assert table.slots == [[0, 1], []]
    assert table.lacks(0, 8) == 0
    assert table.lacks(0, 9) == 1


@pytest.mark.parametrize("pages", [1, 2, 8])
def test_runners_are_compared_over_as_many_pages_as_there_are(pages: int) -> None:
    model = tiny_model("qwen3")
    plan = CachePlan(slots=2, max_context=64 * pages, bytes_wanted=0, pages=pages)
    with torch.inference_mode():
        cache = PagedCache(cache_shape(model.config), plan, torch.float32, DEVICE)
        assert isinstance(choose_runner(model, cache), FusedRunner)
        assert cache.pages.free == pages
        # The last page is where a graph's padding rows write to.
        assert not any(layer[:, :-1].any() for layer in cache.layers)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_attention_over_gathered_pages_is_that_over_slots(rows: int, kv_heads: int, softcap: float | None) -> None:
    """Which lie in memory by key head first, and by row first."""
    torch.manual_seed(0)
    plan = CachePlan(slots=rows, max_context=256, bytes_wanted=0, pages=4 * rows)
    cache = PagedCache(CacheShape(1, kv_heads, 16), plan, torch.float32, CPU)
    cache.hold(rows, 200)
    cache.layers[0].normal_()
    gathered = cache.window(0, rows, 200)
    bias = decode_bias(torch.tensor([199, 64, 3])[:rows], 200, None, torch.float32)
    query = torch.randn(rows, 4, 16)
    over_pages, over_slots = (
        decode_attention(query, *keys_and_values, bias, 0.25, softcap)
        for keys_and_values in (gathered, [each.contiguous() for each in gathered])
    )
    torch.testing.assert_close(over_pages, over_slots, rtol=1e-6, atol=1e-6)


@pytest.mark.cpu  # kernels of a device's own read pages without a window
def test_a_cache_that_is_wrong_from_the_third_page_on_is_found_out() -> None:
    class Forgetful(PagedCache):
        def window(self, layer: int, rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
            keys, values = super().window(layer, rows, length)
            values[:, :, 2 * self.page_tokens :] = 0
            return keys, values

    model = tiny_model("qwen3")
    plan = CachePlan(slots=2, max_context=256, bytes_wanted=0, pages=8)
    with torch.inference_mode(), pytest.raises(EngineError, match="computes other logits than its own"):
        choose_runner(model, Forgetful(cache_shape(model.config), plan, torch.float32, CPU))


def test_what_may_not_be_finite_is_cleared_once_nobody_has_it() -> None:
    table = PageTable(slots=2, pages=4, page_tokens=4)
    table.extend(0, 8)
    table.share(0, 1, 4)
    table.soil(0)
    table.release(0)
    assert table.take_soiled() == [1]
    assert table.take_soiled() == []
    table.release(1)
    assert table.take_soiled() == [0]
    table.extend(0, 4)
    table.release(0)
    assert table.take_soiled() == []
    table.extend(0, 4)
    table.release(0, unseen=True)
    assert table.take_soiled() == [0]


def test_a_cache_reads_what_was_written_whatever_pages_it_is_in() -> None:
    shape = cache_shape(tiny_model("llama").config)
    cache = PagedCache(shape, CachePlan(3, 200, 0, pages=9), torch.float32, CPU)
    pages = cache.pages
    pages.extend(2, 70)  # so that the others' are not the first ones
    pages.extend(0, 130)
    pages.extend(1, 60)
    pages.release(2)
    pages.extend(1, 100)
    cache.begin()
    own = torch.Generator().manual_seed(0)
    tokens = torch.randn(2, 2, 130, shape.heads, shape.head_dim, generator=own)
    tokens[:, 1, 100:] = 0
    for slot, length in ((0, 130), (1, 100)):
        parts, within = cache.at(torch.tensor([slot]), torch.arange(length))
        cache.layers[1][:, parts, :, within] = tokens[:, slot, :length].transpose(0, 1)
    for read in (cache.window(1, 2, 130), cache.gather(1, torch.tensor([0, 1]), 130)):
        for found, wanted in zip(read, tokens, strict=True):
            assert torch.equal(found, wanted.transpose(1, 2))


def test_pages_that_may_not_be_finite_are_zero_before_others_have_them() -> None:
    shape = cache_shape(tiny_model("llama").config)
    cache = PagedCache(shape, CachePlan(2, 128, 0, pages=3), torch.float32, CPU)
    cache.pages.extend(0, 100)
    cache.pages.share(0, 1, 64)
    cache.begin()
    for layer in cache.layers:
        layer[:, cache.pages.slots[0]] = torch.nan
    cache.clear(0, 100)
    cache.pages.release(0)
    cache.begin()
    cache.pages.extend(0, 64)
    cache.begin()
    assert torch.isfinite(cache.window(0, 1, 64)[0]).all()
    assert cache.window(0, 2, 64)[0][1].isnan().all(), "the other one has it yet"
    cache.pages.release(1)
    cache.begin()
    assert all(torch.isfinite(layer).all() for layer in cache.layers)


async def answers(plan: CachePlan, wanted: list[Any]) -> tuple[list[Any], int]:
    """Of all at once; and how many gave way."""
    runtime = InlineRuntime()
    engine = EmbeddedEngine(tiny_model("qwen3"), config=EngineConfig(), runtime=runtime, cache=plan)
    await engine.start()
    try:
        return await asyncio.gather(*(collect(engine, one) for one in wanted)), engine.stats().gave_way
    finally:
        await engine.stop()
        await runtime.close()


@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 0.7, "top_k": 20}])
@pytest.mark.parametrize("pages", [6, 11, 40])
def test_answers_are_those_of_whole_slots_however_few_pages_there_are(
    pages: int, params: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Groups of four with prompts of 1, 65 and 130 tokens, and answers of up to 200; 40 pages are enough for all."""
    wanted = [
        request(f"{length} {i}", prompt(length, length), 200 - 20 * i, key=100 * length + i, **params)
        for length in (1, 65, 130)
        for i in range(4)
    ]
    whole, none = asyncio.run(answers(CachePlan(8, 330, 0), wanted))
    paged, gave_way = asyncio.run(answers(CachePlan(8, 330, 0, pages=pages), wanted))
    for one, other in zip(whole, paged, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
    assert none == 0
    assert (gave_way > 0) == (pages < 40) == ("had no room for all that run" in caplog.text)


def test_a_small_request_does_not_wait_for_pages_that_a_great_one_has() -> None:
    """Slots enough for all, and pages for some: the great request's shortest gives way, and the small one is done
    before any of the others."""
    great = [request(f"g{i}", prompt(1, 6), 250, key=i, client=("a", "1")) for i in range(8)]
    small = request("small", prompt(9, 130), 5, key=77, client=("b", "2"))

    async def run() -> None:
        runtime = InlineRuntime()
        plan = CachePlan(16, 330, 0, pages=12)
        engine = EmbeddedEngine(tiny_model("qwen3"), config=EngineConfig(), runtime=runtime, cache=plan)
        await engine.start()
        try:
            tasks = [asyncio.create_task(collect(engine, one)) for one in great]
            await until(lambda: engine.stats().decode_steps >= 60)
            await collect(engine, small)
            assert not any(task.done() for task in tasks)
            await asyncio.gather(*tasks)
        finally:
            await engine.stop()
            await runtime.close()

    asyncio.run(run())


def test_a_groups_prompt_is_there_once() -> None:
    """Eight samples of 640 tokens and 20 more: ten pages for all, and one for each."""
    wanted = [request(str(i), prompt(1, 641), 20, key=i) for i in range(8)]
    _, gave_way = asyncio.run(answers(CachePlan(8, 768, 0, pages=18), wanted))
    assert gave_way == 0


@pytest.mark.slow
@pytest.mark.cpu
def test_all_tests_of_the_engine_pass_over_pages() -> None:
    here = Path(__file__).parent
    these = ["-m", "not slow", "-k", "embedded", f"--ignore={__file__}", str(here)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *these],
        env={**os.environ, "HEADRACE_TEST_PAGES": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-4000:]
