"""The output layer in pieces: gradients are those of all at once, in bfloat16 to one rounding, and once more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from models_helpers import VOCAB, tiny_model
from torch import Tensor, nn

from headrace.algorithms.kept_sets import KeptSets
from headrace.models.logprobs import Column, token_columns
from headrace.models.packed_lm import PackedLM, output_layer
from headrace.models.packing import MicroBatch, PackRow, pack

AT_ONCE, ONE_BY_ONE = 2**26, VOCAB
"""Logits at a time."""
BOTH: tuple[Column, ...] = ("logprob", "entropy")


def samples(count: int = 3, length: int = 12, *, kept: bool = False, temperatures: bool = False) -> MicroBatch:
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(count):
        tokens, mask = rng.integers(3, VOCAB, length), np.arange(length) > 1
        ids = np.array([(token + step) % VOCAB for token in tokens[mask] for step in range(4)])
        own = KeptSets.of(ids, np.where(mask, 4, 0), VOCAB) if kept else None
        at = np.where(mask, rng.uniform(0.7, 1.4, length), 1.0).astype(np.float32) if temperatures else None
        rows.append(PackRow(tokens, mask, kept=own, temperatures=at))
    return pack(rows)


def passed(
    lm: PackedLM, micro: MicroBatch, max_logits: int, columns: tuple[Column, ...] = ("logprob",)
) -> dict[str, Tensor]:
    """Gradients of a sum whose terms differ."""
    found = token_columns(lm, micro, columns, 0.9, max_logits=max_logits)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    (found * weights.to(found)).sum().backward()
    return {name: own.grad for name, own in lm.model.named_parameters() if own.grad is not None}


def in_float64(model: Any) -> PackedLM:
    """Looked at in its own dtype."""
    lm = PackedLM(model)
    lm.model.double()
    return lm


def head_of(lm: PackedLM) -> nn.Parameter:
    weight: nn.Parameter = output_layer(lm.model).weight
    return weight


@pytest.mark.parametrize("name", ["qwen3", "llama", "gemma2", "gpt2"])
@pytest.mark.parametrize("given", [{}, {"kept": True}, {"temperatures": True}], ids=["plain", "kept", "temperatures"])
def test_gradients_are_those_of_all_logits_at_once(name: str, given: dict[str, bool]) -> None:
    micro, lms = samples(**given), [PackedLM(tiny_model(name)) for _ in range(2)]
    one, many = (passed(lm, micro, size, BOTH) for lm, size in zip(lms, (AT_ONCE, 2 * VOCAB), strict=True))
    assert one.keys() == many.keys()
    apart, whole = (torch.cat([grad.flatten() for grad in each.values()]) for each in (_apart(one, many), one))
    assert float(apart.norm()) <= 1e-6 * float(whole.norm())
    weight, other = (head_of(lm).grad for lm in lms)
    torch.testing.assert_close(weight, other, rtol=0, atol=1e-6 * float(weight.abs().max()))  # type: ignore[union-attr]


def _apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: other[key] - grad for key, grad in one.items()}


@pytest.mark.parametrize("name", ["llama", "qwen3"], ids=["apart", "tied"])
def test_in_bfloat16_many_pieces_are_as_near_to_float64_as_one(name: str) -> None:
    """Of the head's gradient; sums of bfloat16 over 304 pieces would be half as far again where it is apart."""
    micro = samples(8, 40)

    def gradient(max_logits: int) -> Tensor:
        lm = PackedLM(tiny_model(name).to(torch.bfloat16))
        token_columns(lm, micro, ("logprob",), max_logits=max_logits).sum().backward()
        grad = head_of(lm).grad
        assert grad is not None
        assert grad.dtype == torch.bfloat16
        return grad.double()

    lm = in_float64(tiny_model(name).to(torch.bfloat16))
    at = micro.mask.nonzero().squeeze(1)
    hidden = lm.hidden_states(micro.tokens, micro.positions, micro.lengths, at - 1)
    lm.head(hidden).log_softmax(-1).gather(1, micro.tokens[at, None]).sum().backward()
    exact = head_of(lm).grad
    assert exact is not None
    one, many = (float((gradient(size) - exact).norm() / exact.norm()) for size in (AT_ONCE, ONE_BY_ONE))
    assert many <= 1.02 * one


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "qwen3"], ids=["apart", "tied"])
def test_where_sums_are_kept_gradients_are_added_there_and_nowhere_else(name: str, dtype: torch.dtype) -> None:
    """What of a tied matrix comes from the embedding goes to the parameter."""
    micro, plain, lm = samples(), PackedLM(tiny_model(name).to(dtype)), PackedLM(tiny_model(name).to(dtype))
    expected = passed(plain, micro, 4 * VOCAB)
    weight = head_of(lm)
    total = torch.ones_like(weight, dtype=torch.float32, requires_grad=False)
    lm.gradient_sums = {weight: total}
    found = passed(lm, micro, 4 * VOCAB)
    is_tied = name == "qwen3"
    assert (weight.grad is not None) == is_tied
    whole = total - 1.0 if weight.grad is None else total - 1.0 + weight.grad.float()
    of_plain = head_of(plain).grad
    assert of_plain is not None
    rounding = 2e-6 if dtype is torch.float32 else 2.0**-7
    torch.testing.assert_close(whole, of_plain.float(), rtol=0, atol=rounding * float(of_plain.abs().max()))
    for key, grad in expected.items():
        if key in found and plain.model.get_parameter(key) is not head_of(plain):
            torch.testing.assert_close(found[key], grad, rtol=0, atol=0)


def test_gradients_have_gradients() -> None:
    """By the last weights behind attention: its kernel on a CPU has none."""
    micro = samples()

    def second(max_logits: int) -> list[Tensor]:
        lm = in_float64(tiny_model("llama"))
        own = [*lm.model.base_model.layers[-1].mlp.parameters(), head_of(lm)]
        found = token_columns(lm, micro, BOTH, max_logits=max_logits)
        first = torch.autograd.grad(found.square().sum(), own, create_graph=True)
        return [*torch.autograd.grad(sum(each.square().sum() for each in first), own)]

    for one, many in zip(second(AT_ONCE), second(4 * VOCAB), strict=True):
        torch.testing.assert_close(many, one, rtol=1e-5, atol=1e-5 * float(one.abs().max()))


def frozen_head(lm: PackedLM) -> None:
    output_layer(lm.model).requires_grad_(False)


def frozen_layers(lm: PackedLM) -> None:
    lm.model.base_model.requires_grad_(False)


@pytest.mark.parametrize("freeze", [frozen_head, frozen_layers])
def test_what_is_not_trained_has_no_gradient(freeze: Callable[[PackedLM], None]) -> None:
    micro, lms = samples(), [PackedLM(tiny_model("llama")) for _ in range(2)]
    for lm in lms:
        freeze(lm)
    one, many = (passed(lm, micro, size) for lm, size in zip(lms, (AT_ONCE, 4 * VOCAB), strict=True))
    assert one.keys() == many.keys()
    for key, grad in one.items():
        torch.testing.assert_close(many[key], grad, rtol=0, atol=1e-6 * float(grad.abs().max()))


def test_what_is_recorded_has_no_gradient_in_pieces_either() -> None:
    found = token_columns(PackedLM(tiny_model("qwen3")), samples(), ("whole_entropy", "kept_mass"), max_logits=VOCAB)
    assert not found.requires_grad
