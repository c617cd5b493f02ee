"""Thousands of requests, valid and not: none harms another."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest
from engines_helpers import VOCAB, collect, prompt, request, serving, tiny_model

from headrace.engines.protocol import FinishReason, GenerateRequest, RequestError, SamplingParams
from headrace.weights.version import Version

CONTEXT = 64
COUNT = 5000
AT_ONCE = 100

VALID: dict[str, list[Any]] = {
    "temperature": [0, 0.0, 1, 1.0, 0.01, 0.7, 3.5, 100, np.float32(0.5)],
    "top_p": [1, 1.0, 0.9, 0.5, 1e-3, 1e-45, 1e-300, 1 - 1e-12],
    "top_k": [0, 1, 2, 50, VOCAB, VOCAB + 1, 2**31 - 1],
    "max_new_tokens": [1, 1, 2, 2, 3, 3, 5, 10**30],
    "stop_token_ids": [(), (3,), (3, 3), (0, VOCAB - 1), (VOCAB,), (2**31 - 1,), tuple(range(50))],
}
INVALID: dict[str, list[Any]] = {
    "temperature": [1e-300, 5e-324, 1e-38, 0.0099, 100.1, 1e300, -1, -0.1, float("nan"), float("inf"), "1", None, True],
    "top_p": [0, 0.0, -0.5, 1.1, float("nan"), float("inf"), "0.5", None, True],
    "top_k": [-1, -(2**70), 2**31, 2**70, 2.0, float("nan"), "5", None, True],
    "max_new_tokens": [0, -1, -(2**70), 2.5, float("nan"), "4", None, True],
    "stop_token_ids": [(-1,), (2**31,), (2**70,), (1.5,), ("3",), (None,), tuple(range(1025))],
}
KEYS = [0, 1, -1, 2**63, 2**64 - 1, 2**200, -(2**200), np.int64(-5), np.uint64(2**64 - 1)]
BAD_KEYS: list[Any] = [1.5, "1", None, True]
PROMPTS = [[0], [VOCAB - 1], [1, 2, 3], list(range(40)), [5] * (CONTEXT - 1)]
BAD_PROMPTS: list[Any] = [
    np.array([], np.int32),
    np.array([VOCAB], np.int32),
    np.array([3, -1], np.int32),
    np.array([2**31 - 1], np.int64),
    np.array([2**64 - 1], np.uint64),
    np.array([1.0, 2.0]),
    np.array([[1, 2]], np.int32),
    np.array(["1"]),
    np.ones(CONTEXT, np.int32),
    [1, 2, 3],
    "hello",
    None,
]


def random_request(rng: np.random.Generator, number: int) -> tuple[GenerateRequest, bool]:
    """(request, whether it is valid). One in two has something wrong with it, rarely with more than one field."""

    def one(values: list[Any]) -> Any:
        return values[int(rng.integers(len(values)))]

    fields = {name: one(values) for name, values in VALID.items()}
    key, floor = one(KEYS), one([None, Version(0, 0)])
    tokens: Any = np.array(one(PROMPTS), one([np.int32, np.int64, np.uint8]))
    valid = True
    for _ in range(int(rng.choice([0, 1, 2], p=[0.5, 0.45, 0.05]))):
        wrong = one([*INVALID, "key", "prompt", "floor"])
        valid = False
        if wrong == "key":
            key = one(BAD_KEYS)
        elif wrong == "prompt":
            tokens = one(BAD_PROMPTS)
        elif wrong == "floor":
            floor = one([5, "v0", (0, 0)])
        else:
            fields[wrong] = one(INVALID[wrong])
    client = one([(), ("a", "1"), ("a", "2"), ("b", "3")])
    params = SamplingParams(**fields)
    stream, kept = bool(rng.integers(2)), bool(rng.integers(2))
    return GenerateRequest(f"r{number}", tokens, params, key, floor, stream, kept, client), valid


@pytest.mark.slow
def test_five_thousand_requests_of_any_kind_leave_twenty_others_as_they_are_alone() -> None:
    rng = np.random.default_rng(0)
    model = tiny_model("qwen3")
    kinds: list[dict[str, Any]] = [{}, {"temperature": 0.5}, {"temperature": 0.7, "top_p": 0.8}, {"top_k": 20}]
    others = [request(f"other {i}", prompt(i, 2 + i), 40, key=i, **kinds[i % 4]) for i in range(20)]
    strangers = [random_request(rng, number) for number in range(COUNT)]

    async def run() -> list[Any]:
        async with serving(model, max_concurrent_sequences=32, max_context=CONTEXT) as engine:
            places = asyncio.Semaphore(AT_ONCE)

            async def ask(wanted: GenerateRequest, valid: bool, leave: bool) -> None:
                async with places, aclosing(engine.generate(wanted)) as stream:
                    if not valid:
                        with pytest.raises(RequestError, match=r"request 'r[0-9]+': "):
                            await anext(stream)
                        return
                    chunk = await anext(stream)
                    while not leave and chunk.finish_reason is None:
                        chunk = await anext(stream)
                    assert np.isfinite(chunk.logprobs).all()
                    assert chunk.finish_reason in (None, FinishReason.STOP, FinishReason.LENGTH)

            async def answer(i: int) -> Any:
                await asyncio.sleep(0.05 * i)
                return await collect(engine, others[i])

            leaves = rng.random(COUNT) < 0.1
            crowd = [ask(wanted, valid, bool(leave)) for (wanted, valid), leave in zip(strangers, leaves, strict=True)]
            *answers, _ = await asyncio.gather(*(answer(i) for i in range(20)), asyncio.gather(*crowd))
            assert engine.failure is None
            assert engine.stats().running == engine.stats().waiting == 0
            return answers

    async def alone() -> list[Any]:
        async with serving(model, max_context=CONTEXT) as engine:
            return [await collect(engine, one) for one in others]

    for got, wanted in zip(asyncio.run(run()), asyncio.run(alone()), strict=True):
        assert got.tokens.tolist() == wanted.tokens.tolist()
        np.testing.assert_allclose(got.logprobs, wanted.logprobs, atol=1e-5)
