"""Estimates of a KL divergence, one per token, from the log-probs of the sampled tokens alone."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from headrace.algorithms.segments import as_float

Kind = Literal["k1", "k2", "k3", "abs"]


def estimate(logprobs: Tensor, reference: Tensor, *, kind: Kind) -> Tensor:
    """KL(p || q) at each token, shape `[N]`, where the tokens were sampled from p.

    `logprobs` is log p, `reference` is log q. With d = log p - log q (Schulman 2020, "Approximating KL
    divergence"): k1 = d (unbiased, can be negative), k2 = d^2 / 2 (biased, low variance), k3 = exp(-d) - 1 +
    d (unbiased and never negative), and abs = |d|. Nothing is clamped, and nothing is masked. Gradients flow
    through `logprobs` alone.

    Raises ValueError for another kind.
    """
    difference = as_float(logprobs) - as_float(reference.detach())
    if kind == "k1":
        return difference
    if kind == "k2":
        return difference.square() / 2
    if kind == "k3":
        return torch.expm1(-difference) + difference
    if kind == "abs":
        return difference.abs()
    raise ValueError(f"kind is {kind!r}; use 'k1', 'k2', 'k3' or 'abs'")


def k3_with_k2_gradient(logprobs: Tensor, reference: Tensor) -> Tensor:
    """k3's value and k2's gradient, `[N]`, by going straight through.

    The value is that of an unbiased, never negative estimate of KL(p || q); the gradient, d grad log p, is an
    unbiased estimate of the KL's, which k3's own is not (Tang & Munos 2025, arXiv 2506.09477; `k3+` in verl).
    """
    value = estimate(logprobs.detach(), reference, kind="k3")
    gradient = estimate(logprobs, reference, kind="k2")
    return value + (gradient - gradient.detach())
