"""New weights under sequences in flight."""

from __future__ import annotations

import asyncio
import copy
import threading
from typing import Any

import numpy as np
import pytest
import torch
from engines_helpers import collect, prompt, published, reference_logprobs, request, serving, tiny_model

from headrace.config import EngineConfig
from headrace.engines.embedded.cache_plan import plan_cache
from headrace.engines.embedded.core import EngineCore
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.embedded.request_state import Sequence
from headrace.engines.protocol import EngineError, GenerateRequest, SwapMode, SwapReport, TokenChunk
from headrace.weights.in_process import MemoryPublisher
from headrace.weights.plane import WeightError, WeightReceiver
from headrace.weights.version import INITIAL, Version

ONE = Version(0, 1)
PROMPTS = [prompt(1, 6), prompt(1, 6), prompt(2, 11), prompt(3, 1)]


async def _swap_midway(
    engine: EmbeddedEngine, wanted: list[GenerateRequest], new: Any, mode: SwapMode, version: Version = ONE
) -> tuple[list[TokenChunk], SwapReport | None]:
    """Updates once the first request, which must stream, has tokens."""
    begun = asyncio.Event()

    async def first() -> TokenChunk:
        parts = []
        async for chunk in engine.generate(wanted[0]):
            parts.append(chunk)
            if sum(len(part.tokens) for part in parts) >= 10:
                begun.set()
        columns = zip(*((c.tokens, c.logprobs, c.versions, c.branches) for c in parts), strict=True)
        return TokenChunk(*(np.concatenate(column) for column in columns), parts[-1].finish_reason)  # type: ignore[arg-type]

    async def update() -> SwapReport | None:
        await begun.wait()
        return await engine.update(published(new, version), mode)

    *chunks, report = await asyncio.gather(first(), *(collect(engine, one) for one in wanted[1:]), update())
    return chunks, report


def _requests(count: int = 100, **params: Any) -> list[GenerateRequest]:
    return [request(f"r{i}", p, count, key=i, stream=i == 0, **params) for i, p in enumerate(PROMPTS)]


@pytest.mark.parametrize("name", ["qwen3", "gpt2", "gemma3"])
def test_recompute_goes_on_under_the_new_weights_as_if_it_had_always_had_them(name: str) -> None:
    old, new = tiny_model(name, 0), tiny_model(name, 1)

    async def run() -> tuple[list[TokenChunk], SwapReport | None, list[TokenChunk]]:
        async with serving(old, max_concurrent_sequences=4, prefill_tokens_per_step=16) as engine:
            chunks, report = await _swap_midway(engine, _requests(), new, SwapMode.RECOMPUTE)
        again = []
        async with serving(new) as engine:
            for i, chunk in enumerate(chunks):
                kept = int((chunk.versions == 0).sum())
                longer = np.concatenate([PROMPTS[i], chunk.tokens[:kept]])
                again.append(await collect(engine, request(f"r{i}", longer, 100 - kept, key=i)))
        return chunks, report, again

    chunks, report, again = asyncio.run(run())
    recomputed = 0
    for i, (chunk, fresh) in enumerate(zip(chunks, again, strict=True)):
        kept = int((chunk.versions == 0).sum())
        assert 0 < kept < 100
        assert chunk.versions.tolist() == [0] * kept + [1] * (100 - kept)
        assert chunk.tokens[kept:].tolist() == fresh.tokens.tolist()
        np.testing.assert_allclose(chunk.logprobs[kept:], fresh.logprobs, atol=1e-4)
        np.testing.assert_allclose(
            chunk.logprobs[:kept], reference_logprobs(old, PROMPTS[i], chunk.tokens[:kept]), atol=1e-4
        )
        recomputed += len(PROMPTS[i]) + kept - 1
    assert report is not None
    assert (report.version, report.interrupted) == (ONE, 4)
    assert report.recomputed_tokens == recomputed - (len(PROMPTS[0]) - 1)  # the siblings' prompt only once
    assert report.flip_s >= 0
    assert report.prefill_s > 0


def test_recompute_under_equal_weights_changes_no_token() -> None:
    model = tiny_model("qwen3")

    async def run(swap: bool) -> list[TokenChunk]:
        async with serving(model) as engine:
            if swap:
                return (await _swap_midway(engine, _requests(), model, SwapMode.RECOMPUTE))[0]
            return await asyncio.gather(*(collect(engine, one) for one in _requests()))

    for swapped, plain in zip(asyncio.run(run(True)), asyncio.run(run(False)), strict=True):
        assert swapped.tokens.tolist() == plain.tokens.tolist()
        assert len(frozenset(swapped.versions.tolist())) == 2


def test_keep_goes_on_with_the_old_keys_but_shares_them_with_nobody() -> None:
    old, new = tiny_model("qwen3", 0), tiny_model("qwen3", 1)

    async def run() -> tuple[list[TokenChunk], SwapReport | None, TokenChunk, int]:
        async with serving(old) as engine:
            chunks, report = await _swap_midway(engine, _requests(), new, SwapMode.KEEP)
            running = asyncio.create_task(collect(engine, request("long", PROMPTS[0], 100, key=7)))
            before = engine.stats().prefilled_tokens
            later = await collect(engine, request("later", PROMPTS[0], 20, temperature=0))
            await running
            return chunks, report, later, before

    chunks, report, later, prefilled = asyncio.run(run())
    assert report is not None
    assert (report.prefill_s, report.recomputed_tokens, report.interrupted) == (0.0, 0, 4)
    assert prefilled == (len(PROMPTS[0]) - 1) + (len(PROMPTS[2]) - 1)
    chunk = chunks[0]
    kept = int((chunk.versions == 0).sum())
    assert chunk.versions.tolist() == [0] * kept + [1] * (100 - kept)
    under_new = reference_logprobs(new, PROMPTS[0], chunk.tokens)
    assert np.abs(chunk.logprobs[kept:] - under_new[kept:]).max() > 1e-2  # its keys are of the old weights
    np.testing.assert_allclose(later.logprobs, reference_logprobs(new, PROMPTS[0], later.tokens), atol=1e-4)


def test_a_sibling_that_comes_after_a_keep_swap_does_not_copy_the_old_keys() -> None:
    old, new = tiny_model("qwen3", 0), tiny_model("qwen3", 1)

    async def run() -> TokenChunk:
        async with serving(old) as engine:
            stream = engine.generate(request("first", PROMPTS[2], 100, key=1, stream=True))
            await anext(stream)
            await engine.update(published(new, ONE), SwapMode.KEEP)
            sibling = await collect(engine, request("second", PROMPTS[2], 10, temperature=0))
            assert engine.stats().running == 1  # the first still runs, so its keys were there to copy
            await stream.aclose()
            return sibling

    sibling = asyncio.run(run())
    np.testing.assert_allclose(sibling.logprobs, reference_logprobs(new, PROMPTS[2], sibling.tokens), atol=1e-4)


def test_drain_finishes_what_runs_and_holds_back_what_waits() -> None:
    old, new = tiny_model("qwen3", 0), tiny_model("qwen3", 1)

    async def run() -> tuple[list[TokenChunk], SwapReport | None]:
        async with serving(old, max_concurrent_sequences=2) as engine:
            return await _swap_midway(engine, _requests(), new, SwapMode.DRAIN)

    chunks, report = asyncio.run(run())
    assert report is not None
    assert (report.interrupted, report.recomputed_tokens) == (0, 0)
    assert [sorted(frozenset(chunk.versions.tolist())) for chunk in chunks] == [[0], [0], [1], [1]]
    for i in (2, 3):
        expected = reference_logprobs(new, PROMPTS[i], chunks[i].tokens)
        np.testing.assert_allclose(chunks[i].logprobs, expected, atol=1e-4)


def test_swaps_in_every_mode_while_many_sequences_come_and_go() -> None:
    """Each token's log-prob is that of the version stamped on it (recompute), so no step mixed versions."""
    models = [tiny_model("qwen3", seed) for seed in range(4)]

    async def run() -> list[tuple[Any, TokenChunk]]:
        publisher = MemoryPublisher()
        receiver = publisher.receiver()
        async with serving(models[0], max_concurrent_sequences=5, prefill_tokens_per_step=9) as engine:
            ended = asyncio.Semaphore(0)

            async def one(i: int) -> tuple[Any, TokenChunk]:
                tokens = prompt(i % 7, 2 + i % 7)
                wanted = request(f"r{i}", tokens, 10 + 5 * (i % 8), key=i, stream=i % 3 == 0)
                chunk = await collect(engine, wanted)
                ended.release()
                return tokens, chunk

            async def updates() -> None:
                for number in (1, 2, 3):
                    for _ in range(5):
                        await ended.acquire()
                    publisher.publish(Version(0, number), models[number].named_parameters())
                    await engine.update(receiver, SwapMode.RECOMPUTE)

            *done, _ = await asyncio.gather(*(one(i) for i in range(30)), updates())
            assert engine.version == Version(0, 3)
            return done

    mixed = 0
    for tokens, chunk in asyncio.run(run()):
        versions = chunk.versions.tolist()
        assert versions == sorted(versions)
        mixed += len(frozenset(versions)) > 1
        for number in frozenset(versions):
            at = chunk.versions == number
            expected = reference_logprobs(models[number], tokens, chunk.tokens)
            np.testing.assert_allclose(chunk.logprobs[at], expected[at], atol=1e-4)
    assert mixed


@pytest.mark.parametrize("fault", ["missing", "extra", "shape"])
def test_weights_that_do_not_fit_leave_the_old_version(fault: str) -> None:
    model, new = tiny_model("qwen3", 0), tiny_model("qwen3", 1)
    tensors = dict(new.named_parameters())
    if fault == "missing":
        del tensors["model.norm.weight"]
    elif fault == "extra":
        tensors["model.surplus.weight"] = torch.zeros(2)
    else:
        tensors["model.norm.weight"] = torch.zeros(7)  # type: ignore[assignment]
    publisher = MemoryPublisher()
    publisher.publish(ONE, tensors.items())

    async def run() -> TokenChunk:
        async with serving(model) as engine:
            with pytest.raises(WeightError, match=r"norm\.weight|surplus"):
                await engine.update(publisher.receiver(), SwapMode.RECOMPUTE)
            assert engine.version == INITIAL
            return await collect(engine, request("r", PROMPTS[2], 10, temperature=0))

    chunk = asyncio.run(run())
    np.testing.assert_allclose(chunk.logprobs, reference_logprobs(model, PROMPTS[2], chunk.tokens), atol=1e-4)


def test_tied_weights_may_come_under_both_names_and_in_another_dtype() -> None:
    old, new = tiny_model("qwen3", 0), tiny_model("qwen3", 1)
    publisher = MemoryPublisher()
    publisher.publish(ONE, ((name, tensor.double()) for name, tensor in new.state_dict().items()))

    async def run() -> TokenChunk:
        async with serving(old) as engine:
            await engine.update(publisher.receiver(), SwapMode.RECOMPUTE)
            return await collect(engine, request("r", PROMPTS[2], 10, temperature=0))

    chunk = asyncio.run(run())
    np.testing.assert_allclose(chunk.logprobs, reference_logprobs(new, PROMPTS[2], chunk.tokens), atol=1e-4)


def test_versions_only_grow_and_a_left_branch_is_refused() -> None:
    model = tiny_model("qwen3")

    async def run() -> None:
        async with serving(model) as engine:
            assert await engine.update(MemoryPublisher().receiver(), SwapMode.KEEP) is None
            await engine.update(published(model, Version(1, 3)), SwapMode.KEEP)
            assert await engine.update(published(model, Version(1, 3)), SwapMode.KEEP) is None
            with pytest.raises(WeightError, match="branch 0, which was left"):
                await engine.update(published(model, Version(0, 9)), SwapMode.KEEP)
            with pytest.raises(WeightError, match="older"):
                await engine.update(published(model, Version(1, 2)), SwapMode.KEEP)
            chunk = await collect(engine, request("r", PROMPTS[0], 3))
            assert chunk.versions.tolist() == [3, 3, 3]
            assert chunk.branches.tolist() == [1, 1, 1]

    asyncio.run(run())


def test_a_pin_holds_the_version_until_released() -> None:
    old, new = tiny_model("qwen3", 0), tiny_model("qwen3", 1)

    async def run() -> None:
        async with serving(old) as engine:
            pinned = engine.pin()
            update = asyncio.create_task(engine.update(published(new, ONE), SwapMode.RECOMPUTE))
            chunk = await collect(engine, request("a", PROMPTS[0], 30))
            assert frozenset(chunk.versions.tolist()) == {0}
            assert not update.done()
            pinned.release()
            pinned.release()
            assert (await update) is not None
            assert pinned.version == INITIAL
            assert engine.version == ONE

    asyncio.run(run())


def test_a_pin_taken_while_weights_are_received_holds_too() -> None:
    old, new = tiny_model("qwen3", 0), tiny_model("qwen3", 1)
    inner = published(new, ONE)
    entered, go_on = threading.Event(), threading.Event()

    class SlowReceiver(WeightReceiver):
        def latest(self) -> Version | None:
            return inner.latest()

        def receive(self) -> Any:
            entered.set()
            assert go_on.wait(10)
            return inner.receive()

    async def run() -> None:
        async with serving(old) as engine:
            update = asyncio.create_task(engine.update(SlowReceiver(), SwapMode.RECOMPUTE))
            assert await asyncio.to_thread(entered.wait, 10)
            during = await collect(engine, request("during", PROMPTS[0], 10))  # decoding goes on meanwhile
            pinned = engine.pin()
            go_on.set()
            after = await collect(engine, request("after", PROMPTS[0], 100))
            assert frozenset([*during.versions.tolist(), *after.versions.tolist()]) == {0}
            pinned.release()
            await update
            assert engine.version == ONE

    asyncio.run(run())


def test_whoever_holds_the_version_of_an_engine_that_drains_is_served_meanwhile() -> None:
    old, new = tiny_model("qwen3", 0), tiny_model("qwen3", 1)

    async def run() -> None:
        async with serving(old) as engine:
            first = asyncio.create_task(collect(engine, request("first", PROMPTS[0], 110)))
            update = asyncio.create_task(engine.update(published(new, ONE), SwapMode.DRAIN))
            core = engine._core
            assert core is not None
            clock = engine._runtime.clock
            await engine._changed.wait_until(lambda: not core.scheduler.admitting, clock, 30.0, lambda: "a drain")
            assert not first.done()
            pinned = engine.pin()
            chunk = await asyncio.wait_for(collect(engine, request("held", PROMPTS[1], 10)), 30.0)
            await first
            later = await asyncio.wait_for(collect(engine, request("later", PROMPTS[2], 10)), 30.0)
            assert {*chunk.versions.tolist(), *later.versions.tolist()} == {0}
            assert not update.done()
            pinned.release()
            await update
            assert engine.version == ONE

    asyncio.run(run())


def test_no_version_is_held_in_the_moment_in_which_it_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = tiny_model("qwen3", 0), tiny_model("qwen3", 1)
    entered, go_on, flip = threading.Event(), threading.Event(), EngineCore.flip

    def slow(core: EngineCore, *how: Any) -> Any:
        entered.set()
        assert go_on.wait(30)
        return flip(core, *how)

    monkeypatch.setattr(EngineCore, "flip", slow)

    async def run() -> None:
        async with serving(old) as engine:
            update = asyncio.create_task(engine.update(published(new, ONE), SwapMode.RECOMPUTE))
            assert await asyncio.to_thread(entered.wait, 30)
            with pytest.raises(EngineError, match="v0 is just being replaced"):
                engine.pin()
            go_on.set()
            await update
            assert engine.pin().version == ONE

    asyncio.run(run())


def test_keep_starts_a_half_prefilled_prompt_again() -> None:
    old, new = tiny_model("qwen3", 0), tiny_model("qwen3", 1)
    sequence = Sequence(request("long", prompt(8, 60), 5, temperature=0), 128)
    config = EngineConfig(prefill_tokens_per_step=16, max_concurrent_sequences=2)
    core = EngineCore(copy.deepcopy(old), plan_cache(old.config, config, torch.float32), 16, INITIAL, lambda: 0.0)
    core.scheduler.add(sequence)
    core.step()
    assert sequence.cached == 16
    core.flip(core.prepare(published(new, ONE)), SwapMode.KEEP)
    outputs = []
    while not sequence.is_finished:
        outputs += core.step()
    chunk = outputs[0][1]
    np.testing.assert_allclose(chunk.logprobs, reference_logprobs(new, prompt(8, 60), chunk.tokens), atol=1e-4)


def test_an_interrupted_run_ends_after_its_present_step() -> None:
    model = tiny_model("qwen3")
    core = EngineCore(copy.deepcopy(model), plan_cache(model.config, EngineConfig(), torch.float32), 64, INITIAL, float)
    core.scheduler.add(Sequence(request("r", PROMPTS[0], 50), 128))
    core.step()
    ran = core.totals.decode_steps
    assert ran > 1
    core.interrupt = True
    core.step()
    assert core.totals.decode_steps == ran + 1


def test_a_request_for_newer_weights_waits_for_them() -> None:
    old, new = tiny_model("qwen3", 0), tiny_model("qwen3", 1)

    async def run() -> TokenChunk:
        async with serving(old) as engine:
            patient = asyncio.create_task(collect(engine, request("new", PROMPTS[0], 5, min_version=ONE)))
            other = await collect(engine, request("old", PROMPTS[0], 20))
            assert frozenset(other.versions.tolist()) == {0}
            assert not patient.done()
            await engine.update(published(new, ONE), SwapMode.RECOMPUTE)
            return await patient

    assert asyncio.run(run()).versions.tolist() == [1] * 5
