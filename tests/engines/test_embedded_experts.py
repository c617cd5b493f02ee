"""Which experts the embedded engine says that tokens were routed to, and what a trainer makes of them."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import numpy as np
import pytest
import torch
from engines_helpers import collect, joined_chunks, prompt, published, request, serving, tiny_model

from headrace.engines.embedded.cache import KeyValueCache
from headrace.engines.embedded.cache_plan import CachePlan, CacheShape
from headrace.engines.embedded.routed import experts_at
from headrace.engines.embedded.storage import Copy
from headrace.engines.protocol import SwapMode
from headrace.models.logprobs import token_logprobs
from headrace.models.packed_lm import PackedLM
from headrace.models.packing import PackRow, pack
from headrace.weights.version import Version

LAYERS, CHOSEN = 3, 2
PROMPTS = [prompt(1, 6), prompt(1, 6), prompt(2, 21), prompt(3, 1), prompt(4, 2)]


@torch.no_grad()
def chosen_by(model: Any, tokens: Any) -> Any:
    """[T, layers, k], ascending: by the model's own forward pass."""
    model, found = copy.deepcopy(model), []
    for layer in model.model.layers:
        layer.mlp.gate.register_forward_hook(lambda router, args, output: found.append(output[2]))
    model(input_ids=torch.from_numpy(np.asarray(tokens, np.int64))[None].to(model.device), use_cache=False)
    return torch.stack(found, 1).sort(dim=-1).values.cpu().numpy()


def test_every_token_that_was_fed_comes_with_its_experts() -> None:
    """Prompts that are computed in pieces, or copied from another's; streamed or whole; from a later place on; and one
    who does not ask. The last token that was sampled is never fed."""
    model = tiny_model("qwen3_moe")
    begins = [0, 0, 0, 0, 1]

    async def run() -> list[Any]:
        async with serving(model, max_concurrent_sequences=3, prefill_tokens_per_step=8) as engine:
            wanted = [
                request(f"r{i}", p, 20, key=i, stream=i % 2 == 0, experts_from=begins[i]) for i, p in enumerate(PROMPTS)
            ]
            return await asyncio.gather(
                *(collect(engine, one) for one in wanted), collect(engine, request("other", PROMPTS[0], 20))
            )

    *chunks, other = asyncio.run(run())
    assert other.experts is None
    for tokens, begin, chunk in zip(PROMPTS, begins, chunks, strict=True):
        whole = np.concatenate([tokens, chunk.tokens])
        assert chunk.experts.dtype == np.uint8
        assert chunk.experts.shape == (len(whole) - 1 - begin, LAYERS, CHOSEN)
        assert np.array_equal(np.sort(chunk.experts), chosen_by(model, whole)[begin:-1])


@pytest.mark.parametrize("mode", [SwapMode.RECOMPUTE, SwapMode.KEEP])
def test_of_a_swap_in_flight_each_token_has_the_experts_of_the_pass_that_first_computed_it(mode: SwapMode) -> None:
    old, new = tiny_model("qwen3_moe", seed=0), tiny_model("qwen3_moe", seed=1)

    async def run() -> Any:
        async with serving(old, max_concurrent_sequences=2) as engine:
            chunks, swap = [], None
            async for chunk in engine.generate(request("r", PROMPTS[0], 60, key=3, stream=True, experts_from=0)):
                chunks.append(chunk)
                if swap is None:
                    swap = asyncio.create_task(engine.update(published(new, Version(0, 1)), mode))
            assert swap is not None
            await swap
            return joined_chunks(chunks)

    chunk = asyncio.run(run())
    assert set(chunk.versions.tolist()) == {0, 1}
    whole = np.concatenate([PROMPTS[0], chunk.tokens])
    fed = len(PROMPTS[0]) + int((chunk.versions == 0).sum()) - 1
    found = np.sort(chunk.experts)
    assert len(found) == len(whole) - 1
    assert np.array_equal(found[:fed], chosen_by(old, whole)[:fed])
    if mode is SwapMode.RECOMPUTE:
        assert np.array_equal(found[fed:], chosen_by(new, whole)[fed:-1])


def test_numbers_of_many_experts_take_two_bytes() -> None:
    cache = KeyValueCache(CacheShape(1, 1, 2), CachePlan(2, 512, 0), torch.float32, torch.device("cpu"))
    cache.keep_experts(1, 1, 40_000)
    assert cache.experts is not None
    cache.experts[1, 255] = torch.tensor(39_999, dtype=torch.int32).to(torch.int16)
    cache.reserve(300)
    cache.copy(Copy(1, 0, 256))
    first, second = experts_at(cache, [(1, 254, 256), (0, 255, 257)])
    assert (first.dtype, first.ravel().tolist(), second.ravel().tolist()) == (np.uint16, [0, 39_999], [39_999, 0])


def _nearly_tied(model: Any, sign: float) -> Any:
    """Of every three experts one router row, but for a part in a million, which decides: for the first of them, or
    against it."""
    tied = copy.deepcopy(model)
    with torch.no_grad():
        for layer in tied.model.layers:
            weight = layer.mlp.gate.weight
            for first in range(0, len(weight) - 2, 3):
                for place in range(3):
                    weight[first + place] = weight[first] * (1 + sign * 1e-6 * place)
    return tied


def test_where_routers_round_differently_only_replay_agrees() -> None:
    """An engine and a trainer whose routers differ by a millionth, and so choose others of experts that are as good as
    alike: log-probs are far apart, and agree where the trainer routes to the engine's experts. Gradients reach its
    router."""
    base = tiny_model("qwen3_moe")
    sampler, trained = _nearly_tied(base, 1.0), _nearly_tied(base, -1.0)

    async def run() -> list[Any]:
        async with serving(sampler, max_concurrent_sequences=4) as engine:
            wanted = [request(f"r{i}", p, 30, key=i, experts_from=0) for i, p in enumerate(PROMPTS)]
            return await asyncio.gather(*(collect(engine, one) for one in wanted))

    chunks = asyncio.run(run())
    lm = PackedLM(trained)
    apart = {}
    for replays in (False, True):
        rows = []
        for tokens, chunk in zip(PROMPTS, chunks, strict=True):
            whole = np.concatenate([tokens, chunk.tokens])
            experts = chunk.experts if replays else None
            rows.append(PackRow(whole, np.arange(len(whole)) >= len(tokens), experts=experts))
        found = token_logprobs(lm, pack(rows).to(lm.device))
        sampled = torch.from_numpy(np.concatenate([chunk.logprobs for chunk in chunks])).to(lm.device)
        apart[replays] = float((found[found != 0].detach() - sampled).abs().max())
    assert apart[False] > 0.1
    assert apart[True] < 1e-4
    found.sum().backward()
    assert all(layer.mlp.gate.weight.grad.abs().max() > 1e-3 for layer in trained.model.layers)
