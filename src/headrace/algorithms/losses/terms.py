"""What a loss returns, and what all losses of a ratio report."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.algorithms import kl
from headrace.algorithms.segments import keep

Stats = dict[str, Tensor]
"""Detached scalars, each a sum over the tokens inside the mask; `tokens` is how many those are."""


@dataclass(frozen=True, slots=True)
class Loss:
    per_token: Tensor
    """`[N]`, to be minimised; 0 outside the mask."""
    stats: Stats


@dataclass(frozen=True, slots=True)
class PairLoss:
    per_pair: Tensor
    """`[P]`, to be minimised, in the order of the pairs' indices. Sum over micro-batches, divide by the pairs."""
    stats: Stats
    """Sums over pairs; `pairs` is how many those are."""


@torch.no_grad()
def ratio_stats(log_ratio: Tensor, mask: Tensor, clipped: Tensor, *, ratio: Tensor | None = None) -> Stats:
    """Sums, before any clamping, from log current / proximal `[N]` (0 outside the mask).

    `ratio`: of the tokens' own ratios, or of those given. `kl`: of k3 of KL(proximal || current). `clipped`: how
    many of the tokens in `clipped` are inside the mask. `tokens`.
    """
    own = log_ratio.exp()
    return {
        "tokens": mask.sum().to(log_ratio.dtype),
        "ratio": keep(own if ratio is None else ratio, mask).sum(),
        "kl": kl.estimate(torch.zeros_like(log_ratio), log_ratio, kind="k3").sum(),
        "clipped": (clipped & mask).sum().to(log_ratio.dtype),
    }
