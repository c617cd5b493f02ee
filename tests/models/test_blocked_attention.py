"""Attention by blocks of queries: the numbers of the plain formula, in both directions."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headrace.models import attention, attention_choice
from headrace.models.attention_choice import blocks_are_faster, kept_gain, measured
from headrace.models.blocked_attention import blocked_attention

CPU = torch.device("cpu")


def test_by_hand() -> None:
    """The first query sees its own value alone. The second one's scores are 0 and ln 3: 1/4 and 3/4."""
    q = torch.tensor([[[[1.0], [1.0]]]])
    k = torch.tensor([[[[0.0], [math.log(3.0)]]]])
    v = torch.tensor([[[[4.0, 0.0], [8.0, 4.0]]]])
    assert torch.allclose(blocked_attention(q, k, v, 1.0), torch.tensor([[[[4.0, 0.0], [7.0, 3.0]]]]))


def run(states: list[Tensor], grad: Tensor, way: str) -> list[Tensor]:
    """What comes out, and the gradients of queries, keys and values."""
    q, k, v = (each.clone().requires_grad_() for each in states)
    if way == "blocked":
        out = blocked_attention(q, k, v, 0.3)
    else:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True)
    out.backward(grad)
    return [out.detach(), *(each.grad for each in (q, k, v) if each.grad is not None)]


@settings(deadline=None, max_examples=25)
@given(
    batch=st.integers(1, 3),
    key_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    length=st.sampled_from([1, 2, 7, 95, 96, 97, 193, 300]),
    widths=st.sampled_from([(8, 8), (16, 5)]),
    seed=st.integers(0, 2**16),
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 8e-3)])
def test_values_and_gradients_are_those_of_the_whole_product(
    dtype: torch.dtype,
    tolerance: float,
    batch: int,
    key_heads: int,
    group: int,
    length: int,
    widths: tuple[int, int],
    seed: int,
) -> None:
    """The norm of the difference, as a share of each one's own. bfloat16 rounds by 2^-9, in four places that add up."""
    own = torch.Generator().manual_seed(seed)
    heads = key_heads * group
    shapes = [(batch, length, heads, widths[0]), (batch, length, key_heads, widths[0])]
    shapes += [(batch, length, key_heads, widths[1]), (batch, length, heads, widths[1])]
    *states, grad = (torch.randn(shape, generator=own).transpose(1, 2).to(dtype) for shape in shapes)
    found = run(states, grad, "blocked")
    expected = run([each.double() for each in states], grad.double(), "plain")
    for mine, other in zip(found, expected, strict=True):
        assert mine.dtype == dtype
        scale = other.norm().clamp(min=float(grad.double().norm()))  # one token's gradients of queries are 0
        assert float((mine.double() - other).norm() / scale) < tolerance


def test_scores_are_not_rounded_to_bfloat16() -> None:
    """256 and 257 are one number of 8 bits: rounded, both values would have half of the weight."""
    q = torch.tensor([[[[1.0, 1.0], [1.0, 1.0]]]], dtype=torch.bfloat16)
    k = torch.tensor([[[[256.0, 0.0], [256.0, 1.0]]]], dtype=torch.bfloat16)
    v = torch.tensor([[[[0.0], [1.0]]]], dtype=torch.bfloat16)
    found = blocked_attention(q, k, v, 1.0)[0, 0, 1, 0]
    assert float(found) == pytest.approx(1 / (1 + math.exp(-1)), rel=2**-8)


def test_the_first_measurement_decides_for_all(tmp_path: Path) -> None:
    assert kept_gain(tmp_path, lambda: {"blocked_gain": 1.5}) == 1.5
    assert kept_gain(tmp_path, lambda: {"blocked_gain": 0.5}) == 1.5
    assert kept_gain(None, lambda: {"blocked_gain": 1.5}) == 0.0


def test_only_bfloat16_on_a_cpu_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_choice, "_on_cpu", lambda: True)
    monkeypatch.setattr(attention_choice, "HAS_ONEDNN", True)
    assert blocks_are_faster(CPU, torch.bfloat16)
    assert not blocks_are_faster(CPU, torch.float32)
    assert not blocks_are_faster(torch.device("cuda"), torch.bfloat16)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_measuring_leaves_threads_draws_and_modes_alone() -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    with torch.inference_mode():
        assert measured()["blocked_gain"] > 0
        assert torch.is_inference_mode_enabled()
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("window", [None, 300, 20])
def test_packed_attention_takes_it_where_every_key_before_is_seen(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(*given: object) -> Tensor:
        calls.append(1)
        return blocked_attention(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(attention, "blocked_attention", counted)
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 200, 16).to(torch.bfloat16) for heads in (4, 2, 2))
    found = {}
    for blocks in (True, False):
        monkeypatch.setattr(attention, "blocks_are_faster", lambda device, dtype, blocks=blocks: blocks)
        found[blocks] = attention._fused(q, k, v, None, window)
    assert len(calls) == (0 if window == 20 else 1)
    assert float((found[True] - found[False]).abs().max()) < 2e-2
