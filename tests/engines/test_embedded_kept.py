"""Which ids top-k and top-p keep, and how they come with the tokens."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from devices import DEVICE
from engines_helpers import collect, joined_chunks, prompt, published, request, serving, tiny_model
from hypothesis import given
from hypothesis import strategies as st

from headrace.engines.embedded import core
from headrace.engines.embedded.kept_run import MOST_WAITING, KeptRun
from headrace.engines.embedded.largest import largest
from headrace.engines.embedded.request_state import Sequence
from headrace.engines.embedded.sampler import Kept, sample
from headrace.engines.embedded.slot_arrays import DecodeBatch
from headrace.engines.protocol import SwapMode
from headrace.weights.version import Version


@given(
    st.lists(st.sampled_from([-2.0, -0.0, 0.0, 1.5, 3.0, float("-inf")]), min_size=1, max_size=40), st.integers(1, 45)
)
def test_the_largest_are_those_of_a_stable_sort(values: list[float], count: int) -> None:
    tensor = torch.tensor([values, values[::-1]])
    found, places = largest(tensor, count)
    for row, got, at in zip(tensor.tolist(), found.tolist(), places.tolist(), strict=True):
        expected = sorted(range(len(row)), key=lambda i: (-row[i], i))[:count]
        assert at == expected
        assert got == [row[i] for i in expected]


def _kept_by_hand(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> list[int]:
    order = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))[: top_k or None]
    p = torch.softmax(logits[order].double() / temperature, 0).tolist()
    kept: list[int] = []
    for place, i in enumerate(order):
        if top_p < 1 and kept and sum(p[:place]) >= top_p:
            break
        kept.append(i)
    return kept


@pytest.mark.parametrize("top_k", [0, 1, 5, 60])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3])
def test_the_kept_ids_are_the_fewest_that_reach_top_p_among_the_top_k(top_k: int, top_p: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(8, 60) * 3
    batch = DecodeBatch(8, 60, torch.device("cpu"))
    params = {"temperature": 0.7, "top_k": top_k, "top_p": top_p}
    batch.load([Sequence(request(f"r{i}", [0], key=i, **params), 64) for i in range(8)])
    sampled = sample(logits, batch.rows, batch.positions + 1)
    if top_k == 0 and top_p == 1:
        assert sampled.kept is None
        return
    assert sampled.kept is not None
    for row in range(8):
        expected = _kept_by_hand(logits[row], 0.7, top_k, top_p)
        ids = sampled.kept.ids[row, : sampled.kept.counts[row]].tolist()
        assert ids == expected
        token = int(sampled.tokens[row])
        assert token in expected
        of_kept = torch.log_softmax(logits[row, expected] / 0.7, 0)[expected.index(token)]
        assert float(sampled.logprobs[row]) == pytest.approx(float(of_kept), abs=1e-6)


@pytest.mark.parametrize("waiting", [MOST_WAITING, 0])
def test_each_request_gets_the_sets_of_its_own_tokens(monkeypatch: pytest.MonkeyPatch, waiting: int) -> None:
    """Streamed or whole, cut or not, asked for or not, beside each other. Where there is no room for sets that wait,
    each decode step is handed out by itself."""
    monkeypatch.setattr(core, "MOST_WAITING", waiting)
    runs, made = list[int](), KeptRun.of

    def counted(steps: list[Kept], vocab_size: int) -> KeptRun:
        runs.append(len(steps))
        return made(steps, vocab_size)

    monkeypatch.setattr(KeptRun, "of", counted)
    model = tiny_model("qwen3")
    kinds: list[dict[str, Any]] = [
        {"top_k": 4, "return_kept": True},
        {"top_p": 0.6, "return_kept": True, "stream": True},
        {"top_k": 4},
        {"return_kept": True},
        {"temperature": 0, "top_k": 4, "return_kept": True},
    ]

    async def run() -> list[Any]:
        async with serving(model, max_concurrent_sequences=3) as engine:
            return await asyncio.gather(
                *(collect(engine, request(f"r{i}", prompt(i, 5), 30, key=i, **kind)) for i, kind in enumerate(kinds))
            )

    chunks = asyncio.run(run())
    for i, (kind, chunk) in enumerate(zip(kinds, chunks, strict=True)):
        if i > 1:
            assert chunk.kept is None
            continue
        ids, counts = chunk.kept.ids()
        tokens, ends = np.concatenate([prompt(i, 5), chunk.tokens]), np.cumsum(counts)
        whole = torch.from_numpy(tokens.astype(np.int64))[None].to(DEVICE)
        logits = model(input_ids=whole).logits[0].detach().cpu()
        for place in range(30):
            expected = _kept_by_hand(logits[4 + place], 1.0, kind.get("top_k", 0), kind.get("top_p", 1.0))
            assert set(ids[ends[place] - counts[place] : ends[place]].tolist()) == set(expected)
        assert chunk.kept.contain(chunk.tokens).all()
    assert (max(runs) > 1) == bool(waiting)


def test_the_sets_of_a_swap_in_flight_are_each_of_the_version_that_sampled_the_token() -> None:
    old, new = tiny_model("llama", seed=0), tiny_model("llama", seed=1)

    async def run() -> Any:
        async with serving(old, max_concurrent_sequences=2) as engine:
            wanted = request("r", prompt(1, 5), 60, key=3, top_k=3, return_kept=True, stream=True)
            chunks, swap = [], None
            async for chunk in engine.generate(wanted):
                chunks.append(chunk)
                if swap is None:
                    swap = asyncio.create_task(engine.update(published(new, Version(0, 1)), SwapMode.RECOMPUTE))
            assert swap is not None
            await swap
            return joined_chunks(chunks)

    chunk = asyncio.run(run())
    assert set(chunk.versions.tolist()) == {0, 1}
    tokens = torch.from_numpy(np.concatenate([prompt(1, 5), chunk.tokens]).astype(np.int64))[None].to(DEVICE)
    logits = [model(input_ids=tokens).logits[0].detach().cpu() for model in (old, new)]
    ids, counts = chunk.kept.ids()
    for place, part in enumerate(np.split(ids, np.cumsum(counts)[:-1])):
        assert set(part.tolist()) == set(_kept_by_hand(logits[chunk.versions[place]][4 + place], 1.0, 3, 1.0))
