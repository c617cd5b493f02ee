"""The same code on a CUDA device, where decode steps are captured graphs."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from devices import CPU, CUDA
from engines_helpers import collect, greedy, prompt, published, reference_logprobs, request, serving, tiny_model

from headrace.engines.embedded.cache_plan import CachePlan, cache_shape
from headrace.engines.embedded.paged_cache import PagedCache
from headrace.engines.embedded.runners.choice import choose_runner
from headrace.engines.embedded.runners.fused_runner import FusedRunner
from headrace.engines.embedded.runners.graphs import DecodeGraphs
from headrace.engines.protocol import SwapMode
from headrace.weights.version import Version

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
PROMPTS = [prompt(1, 1), prompt(2, 5), prompt(3, 19), prompt(2, 5), prompt(5, 2)]


@pytest.mark.parametrize("name", ["qwen3", "llama", "gemma3", "gpt2"])
def test_greedy_tokens_and_logprobs_equal_the_cpu(name: str) -> None:
    model = tiny_model(name, device=CPU)

    async def run() -> list[Any]:
        async with serving(tiny_model(name, device=CUDA), max_concurrent_sequences=3) as engine:
            wanted = [request(f"r{i}", p, 20, temperature=0) for i, p in enumerate(PROMPTS)]
            return await asyncio.gather(*(collect(engine, one) for one in wanted))

    for tokens, chunk in zip(PROMPTS, asyncio.run(run()), strict=True):
        assert chunk.tokens.tolist() == greedy(model, tokens, 20)
        np.testing.assert_allclose(chunk.logprobs, reference_logprobs(model, tokens, chunk.tokens), atol=1e-3)


@pytest.mark.parametrize("context", [64, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_kernels_of_its_own_agree_with_the_model_and_are_taken(name: str, dtype: torch.dtype, context: int) -> None:
    """Over one page of each sequence, and over three."""
    pytest.importorskip("triton")
    model = tiny_model(name, dtype=dtype, device=CUDA)
    plan = CachePlan(slots=4, max_context=context, bytes_wanted=0, pages=context // 16)
    with torch.inference_mode():
        runner = choose_runner(model, PagedCache(cache_shape(model.config), plan, dtype, CUDA))
    assert isinstance(runner, FusedRunner)
    assert type(runner.operations).__name__ == "TritonOperations"


def test_all_graphs_are_there_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[tuple[int, int]] = []
    capture = DecodeGraphs._capture

    def captured(graphs: DecodeGraphs, bucket: int, reach: int) -> Any:
        log.append((bucket, reach))
        return capture(graphs, bucket, reach)

    monkeypatch.setattr(DecodeGraphs, "_capture", captured)

    async def run() -> tuple[int, list[Any]]:
        async with serving(tiny_model("qwen3", device=CUDA), max_concurrent_sequences=3) as engine:
            before = len(log)
            wanted = [request(f"r{i}", p, 20, temperature=0) for i, p in enumerate(PROMPTS)]
            return before, await asyncio.gather(*(collect(engine, one) for one in wanted))

    before, chunks = asyncio.run(run())
    assert before == len(log)
    model = tiny_model("qwen3", device=CPU)
    assert [chunk.tokens.tolist() for chunk in chunks] == [greedy(model, tokens, 20) for tokens in PROMPTS]


def test_noise_and_stops_are_those_of_the_cpu() -> None:
    async def run(model: Any) -> list[Any]:
        async with serving(model, max_concurrent_sequences=3) as engine:
            wanted = [
                request(f"r{i}", p, 60, key=i, top_k=20, stop_token_ids=tuple(range(0, 97, 30)))
                for i, p in enumerate(PROMPTS)
            ]
            return await asyncio.gather(*(collect(engine, one) for one in wanted))

    on_cpu, on_gpu = (asyncio.run(run(tiny_model(device=device))) for device in (CPU, CUDA))
    for one, other in zip(on_cpu, on_gpu, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.finish_reason == other.finish_reason


@pytest.mark.parametrize("mode", [SwapMode.RECOMPUTE, SwapMode.KEEP])
def test_captured_graphs_compute_with_the_new_weights_after_a_swap(mode: SwapMode) -> None:
    old, new = (tiny_model("qwen3", seed, device=CUDA) for seed in (0, 1))

    async def run() -> Any:
        async with serving(old, max_concurrent_sequences=4) as engine:
            stream = engine.generate(request("first", PROMPTS[2], 100, stream=True))
            await anext(stream)
            await engine.update(published(new, Version(0, 1)), mode)
            chunk = await collect(engine, request("r", PROMPTS[1], 20, temperature=0))
            await stream.aclose()
            return chunk

    chunk = asyncio.run(run())
    expected = reference_logprobs(new.to(CPU), PROMPTS[1], chunk.tokens)
    np.testing.assert_allclose(chunk.logprobs, expected, atol=1e-3)
