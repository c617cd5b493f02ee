"""Rows whose logits are not numbers: each fails its own request, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import numpy as np
import pytest
import torch
from engines_helpers import VOCAB, collect, prompt, published, request, serving, tiny_model, until

from headrace.engines.embedded.request_state import Sequence
from headrace.engines.embedded.sampler import sample
from headrace.engines.embedded.slot_arrays import DecodeBatch
from headrace.engines.protocol import EngineError, SwapMode
from headrace.weights.version import Version


def cursed_model(token: int) -> Any:
    """Whoever has `token` has keys, values and logits that are NaN."""
    model = copy.deepcopy(tiny_model("llama"))
    with torch.no_grad():
        model.get_input_embeddings().weight[token] = torch.nan
    return model


def unseen(*seen: Any) -> int:
    """A token in none of these."""
    return int(np.setdiff1d(np.arange(VOCAB), np.concatenate(seen))[0])


def cursed_prompt(seed: int, length: int, at: int, token: int) -> Any:
    tokens = prompt(seed, length)
    tokens[at] = token
    return tokens


def assert_same(got: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


async def one_by_one(wanted: list[Any]) -> list[Any]:
    async with serving(tiny_model("llama")) as engine:
        return [await collect(engine, one) for one in wanted]


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0}, {"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.5}, {"top_k": 5, "top_p": 0.5}]
)
def test_a_bad_row_has_no_finite_logprob_and_touches_no_other(params: dict[str, Any]) -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, VOCAB) * 3
    bad = logits.clone()
    bad[0, 3], bad[2, 4], bad[4] = torch.nan, torch.inf, -torch.inf
    batch = DecodeBatch(5, VOCAB, torch.device("cpu"))
    batch.load([Sequence(request(f"r{i}", [0], key=i, **params), 64) for i in range(5)])
    sampled = sample(bad, batch.rows, batch.positions + 1)
    wanted = sample(logits, batch.rows, batch.positions + 1)
    assert ((sampled.tokens >= 0) & (sampled.tokens < VOCAB)).all()
    assert torch.isfinite(sampled.logprobs).tolist() == [False, True, False, True, False]
    assert sampled.tokens[[1, 3]].tolist() == wanted.tokens[[1, 3]].tolist()
    assert torch.equal(sampled.logprobs[[1, 3]], wanted.logprobs[[1, 3]])


def test_a_bad_row_fails_its_own_request_and_those_in_its_slot_after_it_are_right() -> None:
    """Two slots: the first always holds a long sequence, so that all attention looks far into the other, where bad
    requests and good ones take turns."""
    bystander = request("long", prompt(1, 5), 110, key=1, temperature=0.7)
    good = [request(f"good {i}", prompt(10 + i, 3 + i), 6, key=i, temperature=0.7) for i in range(6)]
    wanted = asyncio.run(one_by_one([bystander, *good]))
    token = unseen(*(chunk.tokens for chunk in wanted), *(one.prompt for one in [bystander, *good]))
    bad = [request(f"bad {i}", cursed_prompt(20 + i, 12 + 3 * i, 2 * i, token), 6, key=i) for i in range(6)]

    async def run() -> list[Any]:
        async with serving(cursed_model(token), max_concurrent_sequences=2) as engine:
            stays = asyncio.create_task(collect(engine, bystander))
            answers = []
            for i in range(6):
                with pytest.raises(EngineError, match=rf"'bad {i}' was lost: the logits after its token .* not finite"):
                    await collect(engine, bad[i])
                answers.append(await collect(engine, good[i]))
            assert engine.failure is None
            stayed = await stays
            assert engine.stats().running == 0
            return [stayed, *answers]

    assert_same(asyncio.run(run()), wanted)


def test_a_row_may_turn_bad_in_the_middle_of_a_response() -> None:
    model, tokens = tiny_model("llama"), prompt(1, 5)
    whole = asyncio.run(one_by_one([request("r", tokens, 30, key=1)]))[0].tokens
    at = next(i for i in range(3, 30) if whole[i] not in whole[:i] and whole[i] not in tokens)
    model = cursed_model(int(whole[at]))

    async def run() -> None:
        async with serving(model) as engine:
            stream = engine.generate(request("s", tokens, 30, key=1, stream=True))
            given: list[int] = []

            async def read() -> None:
                async for chunk in stream:
                    given.extend(chunk.tokens.tolist())

            with pytest.raises(EngineError, match=f"the logits after its token {5 + at + 1} are not finite"):
                await read()
            assert given == whole[: len(given)].tolist()
            # A stop token before that ends it well.
            stopped = await collect(engine, request("t", tokens, 30, key=1, stop_token_ids=(int(whole[at]),)))
            assert stopped.tokens.tolist() == whole[: at + 1].tolist()

    asyncio.run(run())


def test_a_model_that_computes_nothing_finite_is_not_served() -> None:
    """Finite weights whose products overflow."""
    model = copy.deepcopy(tiny_model("llama"))
    with torch.no_grad():
        model.get_output_embeddings().weight.fill_(3e38)

    async def run() -> None:
        async with serving(model):
            raise AssertionError("it was served")

    with pytest.raises(
        EngineError, match=r"LlamaForCausalLM computes logits that are not finite, .* overflows float32"
    ):
        asyncio.run(run())


@pytest.mark.parametrize("left_by", ["abort", "recompute", "keep", "moved"])
def test_a_prompt_that_was_never_decoded_leaves_nothing_behind(left_by: str) -> None:
    """A bad prompt, partly prefilled, gives up its slot before any decode step could tell that it is bad."""
    bystander = request("long", prompt(1, 5), 100, key=1, temperature=0.7, stream=True)
    other = request("other", prompt(2, 3), 40, key=3, temperature=0.7, stream=True)
    good = [request(f"good {i}", prompt(10 + i, 3), 6, key=i, temperature=0.7) for i in range(3)]
    everyone = [bystander, other, *good]
    wanted = asyncio.run(one_by_one(everyone))
    token = unseen(*(chunk.tokens for chunk in wanted), *(one.prompt for one in everyone))
    bad = request("bad", cursed_prompt(3, 100, 0, token), 3)

    async def run() -> list[Any]:
        async with serving(cursed_model(token), max_concurrent_sequences=3, prefill_tokens_per_step=1) as engine:
            core = engine._core
            assert core is not None
            streams = [engine.generate(one) for one in (bystander, other)]
            for stream in streams:
                await anext(stream)
            lost = asyncio.create_task(collect(engine, bad))
            await until(lambda: core.scheduler.partial is not None)
            if left_by == "moved":
                await streams[1].aclose()  # the bad one moves to the slot that it had
                await until(lambda: engine.stats().running == 1)
            elif left_by != "abort":
                await engine.update(published(tiny_model("llama"), Version(0, 1)), SwapMode(left_by))
            assert core.scheduler.partial is not None or left_by in ("recompute", "keep")
            engine.abort(["bad"])
            await lost
            answers = list(await asyncio.gather(*(collect(engine, one) for one in good)))
            for stream in streams:
                await stream.aclose()
            return answers

    assert_same(asyncio.run(run()), wanted[2:])
