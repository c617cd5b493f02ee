"""Attention over samples of any lengths in one call: where they are, and that batches of like length give the same."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from headrace.models import attention, varlen_attention
from headrace.models.attention import packed_attention
from headrace.models.length_batches import SegmentPlan
from headrace.models.prefixes import SharedPrefixes
from headrace.models.varied_lengths import VariedLengths
from headrace.models.varlen_attention import disagreement, one_by_one

CPU = torch.device("cpu")
HEADS, KEY_HEADS, WIDTH = 4, 2, 8
SIZES = (HEADS, KEY_HEADS, WIDTH)


def test_keys_are_whole_samples_and_queries_their_own_tokens() -> None:
    """Of 6, 7, 2 and 6 tokens; the second begins with 4 of the first, the last with the third."""
    lengths = [6, 7, 2, 6]
    tokens = np.array([1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 7, 8, 9, 1, 2, 1, 2, 3, 4, 5, 6])
    found = VariedLengths.of(lengths, CPU, SharedPrefixes.of(tokens, lengths))
    # The third is too short to share anything, and leads the last, whose two tokens in common with it are too few.
    assert found.queries.tolist() == [0, 6, 9, 11, 17]
    assert found.keys.tolist() == [0, 6, 13, 15, 21]
    assert (found.most_queries, found.most_keys) == (6, 7)
    assert found.source is not None
    assert found.place is not None
    assert found.repeats is not None
    assert found.source.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 6, 7, 8, *range(9, 17)]
    assert found.place.tolist() == [0, 1, 2, 3, 4, 5, 10, 11, 12, *range(13, 21)]
    assert [each.tolist() for each in found.repeats] == [[6, 7, 8, 9], [0, 1, 2, 3]]


def test_a_sample_without_tokens_of_its_own_is_left_out() -> None:
    lengths = [5, 5]
    tokens = np.array([1, 2, 3, 4, 5, 1, 2, 3, 4, 5])
    found = VariedLengths.of(lengths, CPU, SharedPrefixes.of(tokens, lengths))
    assert found.queries.tolist() == found.keys.tolist() == [0, 5]
    assert found.source is None


def results(segments: SegmentPlan, tokens: int, window: int | None) -> list[torch.Tensor]:
    """What attention makes of arbitrary states, and the gradients of these."""
    own = torch.Generator().manual_seed(0)
    states = [
        torch.randn(1, heads, tokens, WIDTH, generator=own, dtype=torch.float64).requires_grad_()
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    ]
    grad = torch.randn(1, tokens, HEADS, WIDTH, generator=own, dtype=torch.float64)
    made, _ = packed_attention(torch.nn.Identity(), *states, None, segments=segments, sliding_window=window)
    made.backward(grad)
    return [made.detach(), *(each.grad for each in states if each.grad is not None)]


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    alike=st.lists(st.integers(0, 20), min_size=6, max_size=6),
    window=st.none() | st.integers(1, 25),
)
def test_it_is_what_batches_of_like_length_give(lengths: list[int], alike: list[int], window: int | None) -> None:
    first = np.arange(20)
    samples = [
        np.where(np.arange(length) < same, first[:length], 100 * (place + 1))
        for place, (length, same) in enumerate(zip(lengths, alike, strict=False))
    ]
    prefixes = SharedPrefixes.of(np.concatenate(samples), lengths)
    segments = SegmentPlan.of(lengths, CPU, prefixes)
    at_once = replace(segments, varied=lambda: VariedLengths.of(lengths, CPU, prefixes))
    calls: list[Any] = []

    def attend(*given: Any) -> torch.Tensor:
        calls.append(given)
        return one_by_one(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "varlen_attention", lambda q, k, v, window: attend)
        mine = results(at_once, segments.tokens, window)
    assert len(calls) == 1
    for one, other in zip(mine, results(segments, segments.tokens, window), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [None, 33])
def test_the_probe_tells_right_from_wrong(window: int | None) -> None:
    assert disagreement(one_by_one, CPU, torch.float32, SIZES, window) < 1.0

    def from_the_left(q: Any, k: Any, v: Any, lengths: VariedLengths, scale: float, window: int | None) -> torch.Tensor:
        """As if a sample's own tokens were its first."""
        kept = torch.cat(
            [torch.arange(int(a), int(a) + int(n)) for a, n in zip(lengths.keys, lengths.queries.diff(), strict=False)]
        )
        return one_by_one(q, k[kept], v[kept], replace(lengths, keys=lengths.queries), scale, window)

    def unscaled(q: Any, k: Any, v: Any, lengths: VariedLengths, scale: float, window: int | None) -> torch.Tensor:
        return one_by_one(q, k, v, lengths, 1.0, window)

    for wrong in (from_the_left, unscaled):
        assert disagreement(wrong, CPU, torch.float32, SIZES, window) > 1.0


def test_it_can_be_tried_within_a_pass_that_is_checkpointed() -> None:
    """As the first pass of a trainer is. What it saves there is nobody's business."""

    def layer(x: torch.Tensor) -> torch.Tensor:
        assert disagreement(one_by_one, CPU, torch.float32, SIZES, None) < 1.0
        return (x * x).sin()

    x = torch.ones(3, requires_grad=True)
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 * torch.cos(torch.ones(3)))


def test_where_no_kernel_computes_it_attention_goes_by_length(caplog: pytest.LogCaptureFixture) -> None:
    """As on a CPU, for which torch has none."""
    with caplog.at_level(logging.WARNING):
        assert varlen_attention._checked(CPU, torch.bfloat16, SIZES, False) is None
    assert "attention over packed samples goes by samples of like length" in caplog.text
    states = torch.zeros(3, HEADS, WIDTH, dtype=torch.bfloat16)
    assert varlen_attention.varlen_attention(states, states, states, None) is None


def test_memory_that_runs_out_says_nothing_of_the_kernel_which_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = iter([torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: out of memory"), None])

    def disagreement(*given: Any) -> float:
        if (error := next(tried)) is not None:
            raise error
        return 0.5

    monkeypatch.setattr(varlen_attention, "disagreement", disagreement)
    own = (CPU, torch.bfloat16, (HEADS, KEY_HEADS, 3 * WIDTH), False)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of memory"):
            varlen_attention._checked(*own)
    assert varlen_attention._checked(*own) is varlen_attention.by_torch


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("sizes", [(14, 2, 64), (12, 2, 128), (4, 4, 32)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_torchs_kernel_computes_it(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    device = torch.device("cuda")
    assert disagreement(varlen_attention.by_torch, device, dtype, sizes, None) <= 1.0
    heads, key_heads, width = sizes
    q, k = (torch.zeros(3, some, width, dtype=dtype, device=device) for some in (heads, key_heads))
    assert varlen_attention.varlen_attention(q, k, k, None) is varlen_attention.by_torch
