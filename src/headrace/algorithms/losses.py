"""Policy losses, one value per token."""

from __future__ import annotations

import math
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


def clipped_surrogate(
    logprobs: Tensor,
    proximal: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Loss:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) with r = exp(logprobs - proximal), all `[N]`.

    PPO, Schulman et al. 2017, arXiv 1707.06347, eq. 7; with two clip ranges, DAPO, arXiv 2503.14476, eq. 10.
    With `dual_clip` = c > 1, where A < 0 the objective is at least c A (Ye et al. 2020, arXiv 1912.09729, eq.
    5), so that a huge ratio cannot give a huge loss. Gradients flow through `logprobs` alone.

    Stats, before any clamping: `ratio` (sum of r), `kl` (sum of k3 of KL(proximal || current)), `clipped`
    (number of tokens where the clip, on either side or dual, took the gradient away), `tokens`.

    Raises ValueError for a negative clip range, clip_low above 1, or dual_clip not above 1.
    """
    if not 0 <= clip_low <= 1:
        raise ValueError(f"clip_low is {clip_low}; a ratio is never negative, so use 0 to 1")
    if clip_high < 0:
        raise ValueError(f"clip_high is {clip_high}; use 0 or more")
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"dual_clip is {dual_clip}; it bounds ratios far above 1, use more than 1 (as 3)")

    advantages = keep(advantages.detach(), mask)
    logprobs = keep(logprobs, mask)
    proximal = keep(proximal.detach(), mask)
    log_ratio = logprobs - proximal

    # min(r A, clip(r) A) bounds r only from above where A > 0 and only from below where A < 0 (dual_clip:
    # from above too). Bounding log r instead of r is the same, and a ratio beyond float's range cannot turn a
    # gradient into NaN.
    above = math.inf if dual_clip is None else math.log(dual_clip)
    below = math.log1p(-clip_low) if clip_low < 1 else -math.inf
    gains = advantages >= 0
    upper = torch.where(gains, log_ratio.new_full((), math.log1p(clip_high)), log_ratio.new_full((), above))
    lower = torch.where(gains, log_ratio.new_full((), -math.inf), log_ratio.new_full((), below))
    limited = torch.clamp(log_ratio, min=lower, max=upper)
    per_token = -limited.exp() * advantages

    with torch.no_grad():
        beyond = ((log_ratio > upper) | (log_ratio < lower)) & (advantages != 0) & mask
        stats = {
            "tokens": mask.sum().to(log_ratio.dtype),
            "ratio": keep(log_ratio.exp(), mask).sum(),
            "kl": kl.estimate(proximal, logprobs, kind="k3").sum(),
            "clipped": beyond.sum().to(log_ratio.dtype),
        }
    return Loss(per_token=per_token, stats=stats)
