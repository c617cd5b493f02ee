"""Noise, the distribution sampled from, and its log-probs."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from engines_helpers import VOCAB, collect, prompt, request, serving, tiny_model

from headrace.engines.embedded.noise import stream_of, uniform
from headrace.engines.embedded.request_state import Sequence
from headrace.engines.embedded.sampler import sample
from headrace.engines.embedded.slot_arrays import DecodeBatch

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])


def _draw(logits: torch.Tensor, count: int, **params: Any) -> tuple[Any, Any]:
    """`count` draws of one distribution, each with a key of its own."""
    batch = DecodeBatch(count, logits.shape[-1], torch.device("cpu"))
    batch.load([Sequence(request(f"r{i}", [0], key=i, **params), 64) for i in range(count)])
    sampled = sample(logits.expand(count, -1), batch.rows, batch.positions + 1)
    return sampled.tokens.numpy(), sampled.logprobs.numpy()


def _splitmix_output(z: int) -> int:
    """The published function, in Python's integers."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def test_splitmix64_gives_the_published_sequence() -> None:
    """Seed 1234567: the first outputs of the reference implementation."""
    state, outputs = 1234567, []
    for _ in range(3):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        outputs.append(_splitmix_output(state))
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("key", [0, 1, 2**63, 2**64 - 1, 0x0123456789ABCDEF])
def test_the_noise_is_the_documented_hash(key: int) -> None:
    positions = torch.tensor([0, 1, 77, 40_000])
    got = uniform(torch.full_like(positions, stream_of(key)), positions)
    for position, value in zip(positions.tolist(), got.tolist(), strict=True):
        state = (_splitmix_output(key) + 0x9E3779B97F4A7C15 * (position + 1)) % 2**64
        assert value == (_splitmix_output(state) >> 40) / 2**24


def test_noise_is_even_over_keys_and_over_positions() -> None:
    """Chi-square over 64 bins, 63 degrees of freedom: below 103 with probability 0.999."""
    n = torch.arange(65536)
    streams = torch.tensor([stream_of(i) for i in range(65536)])
    for draws in (uniform(streams, torch.zeros_like(n)), uniform(torch.full_like(n, stream_of(3)), n)):
        counts = torch.histc(draws, bins=64, min=0.0, max=1.0)
        assert ((counts - 1024) ** 2 / 1024).sum() < 103
        assert draws.max() < 1


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, torch.softmax(LOGITS, -1)),
        ({"temperature": 2.0}, torch.softmax(LOGITS / 2, -1)),
        ({"top_k": 2}, torch.softmax(LOGITS[:2], -1)),
        ({"top_p": 0.6}, torch.softmax(LOGITS[:2], -1)),
        ({"top_p": 0.01}, torch.ones(1)),
        ({"top_k": 3, "top_p": 0.8}, torch.softmax(LOGITS[:2], -1)),
    ],
)
def test_frequencies_and_logprobs_are_of_the_cut_distribution(params: dict[str, Any], expected: torch.Tensor) -> None:
    """Shares by hand: exp of LOGITS is 7.39 2.72 1.65 1 .37 .05, sum 13.17: shares .561 .206 .125 .076 .028 .004.

    top_p .6 needs two (.767); top_k 3 leaves .629 .231 .140 of which .8 needs two.
    """
    count = 20_000
    tokens, logprobs = _draw(LOGITS, count, **params)
    seen = np.bincount(tokens, minlength=len(LOGITS))
    assert seen[len(expected) :].sum() == 0
    wanted = expected.numpy() * count
    assert ((seen[: len(expected)] - wanted) ** 2 / wanted).sum() < 21  # 5 degrees of freedom, p = 0.999
    np.testing.assert_allclose(logprobs, expected.log().numpy()[tokens], atol=1e-5)


def test_equal_logits_at_the_edge_of_top_k_keep_exactly_k() -> None:
    tokens, logprobs = _draw(torch.zeros(6), 200, top_k=3)
    assert set(tokens.tolist()) == {0, 1, 2}
    np.testing.assert_allclose(logprobs, np.log(1 / 3), atol=1e-6)


def test_greedy_takes_the_greatest_and_reports_its_logprob_at_temperature_1() -> None:
    tokens, logprobs = _draw(LOGITS, 3, temperature=0, top_k=1, top_p=0.1)
    assert tokens.tolist() == [0, 0, 0]
    np.testing.assert_allclose(logprobs, torch.log_softmax(LOGITS, -1)[0].item(), atol=1e-6)


def test_a_token_without_probability_is_never_sampled() -> None:
    logits = torch.full((VOCAB,), -torch.inf)
    logits[5], logits[60] = 0.0, 0.0
    tokens, _ = _draw(logits, 2000)
    assert set(tokens.tolist()) == {5, 60}


def test_rows_with_parameters_of_their_own_do_not_touch_each_other() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, VOCAB) * 3
    params: list[dict[str, Any]] = [
        {},
        {"temperature": 0},
        {"top_k": 4},
        {"top_p": 0.5},
        {"temperature": 0.3},
        {"temperature": 1.7, "top_k": 20, "top_p": 0.9},
    ]
    sequences = [Sequence(request(f"r{i}", [0], key=i, **p), 64) for i, p in enumerate(params)]
    batch = DecodeBatch(6, VOCAB, torch.device("cpu"))
    batch.load(sequences)
    together = sample(logits, batch.rows, batch.positions + 1)
    for i, sequence in enumerate(sequences):
        batch.load([sequence])
        alone = sample(logits[i : i + 1], batch.rows, batch.positions + 1)
        assert alone.tokens.item() == together.tokens[i].item()
        assert alone.logprobs.item() == pytest.approx(together.logprobs[i].item(), abs=1e-6)


def test_a_sample_is_the_same_alone_and_among_twenty_others() -> None:
    model = tiny_model("qwen3")
    wanted = request("mine", prompt(1, 7), 40, key=99)

    async def run(others: int) -> Any:
        async with serving(model, max_concurrent_sequences=8) as engine:
            crowd = [
                collect(engine, request(f"r{i}", prompt(i, 3 + i), 5 + 3 * i, key=i, temperature=0.5 + i / 10, top_k=i))
                for i in range(others)
            ]
            return (await asyncio.gather(collect(engine, wanted), *crowd))[0]

    alone, crowded = asyncio.run(run(0)), asyncio.run(run(20))
    assert alone.tokens.tolist() == crowded.tokens.tolist()
    np.testing.assert_allclose(alone.logprobs, crowded.logprobs, atol=1e-5)
