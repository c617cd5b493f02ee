"""Surrogates of a ratio current / proximal, each token's own: PPO's clip and its relatives."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headrace.algorithms.losses.terms import Loss, ratio_stats
from headrace.algorithms.segments import keep


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
    check_clip(clip_low, clip_high)
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"dual_clip is {dual_clip}; it bounds ratios far above 1, use more than 1 (as 3)")
    advantages = keep(advantages.detach(), mask)
    log_ratio = keep(logprobs, mask) - keep(proximal.detach(), mask)
    below, above = log_bounds(clip_low, clip_high)
    limited, beyond = limit(
        log_ratio, advantages, below=below, above=above, dual=math.inf if dual_clip is None else math.log(dual_clip)
    )
    return Loss(per_token=-limited.exp() * advantages, stats=ratio_stats(log_ratio, mask, beyond))


def cispo(
    logprobs: Tensor, proximal: Tensor, advantages: Tensor, mask: Tensor, *, clip_low: float, clip_high: float
) -> Loss:
    """-w A log pi, with the constant weight w = clip(exp(logprobs - proximal), 1 - clip_low, 1 + clip_high), `[N]`.

    CISPO, MiniMax-M1, Chen et al. 2025, arXiv 2506.13585, eq. 4 and 5: the weight is clipped, no token loses its
    gradient. With a `clip_low` of 1 or more there is no lower bound, as in the paper. Gradients flow through the
    log pi of `logprobs` alone.

    Stats as of `clipped_surrogate`; `clipped` counts the tokens whose weight was limited, on either side.

    Raises ValueError for a negative clip range.
    """
    if clip_low < 0 or clip_high < 0:
        raise ValueError(f"clip_low is {clip_low}, clip_high is {clip_high}; use 0 or more")
    advantages = keep(advantages.detach(), mask)
    current = keep(logprobs, mask)
    log_ratio = current.detach() - keep(proximal.detach(), mask)
    below, above = log_bounds(clip_low, clip_high)
    weight = log_ratio.clamp(below, above).exp()
    beyond = (log_ratio < below) | (log_ratio > above)
    return Loss(per_token=-(weight * advantages) * current, stats=ratio_stats(log_ratio, mask, beyond))


def sapo(
    logprobs: Tensor,
    proximal: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
) -> Loss:
    """-(4 / tau) sigmoid(tau (r - 1)) A with r = exp(logprobs - proximal), all `[N]`.

    SAPO, Gao et al. 2025, arXiv 2511.20347: a soft gate in the clip's place, whose slope is 1 at r = 1. tau is
    `tau_positive` where A > 0, else `tau_negative`; the defaults are the paper's. Gradients flow through
    `logprobs` alone.

    Stats as of `clipped_surrogate`; nothing is ever `clipped`.

    Raises ValueError unless both taus are above 0.
    """
    if not (tau_positive > 0 and tau_negative > 0):
        raise ValueError(f"tau_positive is {tau_positive}, tau_negative is {tau_negative}; use more than 0")
    advantages = keep(advantages.detach(), mask)
    log_ratio = keep(logprobs, mask) - keep(proximal.detach(), mask)
    tau = torch.where(advantages > 0, log_ratio.new_tensor(tau_positive), log_ratio.new_tensor(tau_negative))
    # Where tau (r - 1) passes 1000 the gate is 1 and its slope 0 to the last digit of a float; there the ratio is
    # held, so that one beyond float's range cannot turn the gradient into NaN.
    ratio = torch.minimum(log_ratio, torch.log1p(1000 / tau)).exp()
    gate = (4 / tau) * torch.sigmoid(tau * (ratio - 1))
    return Loss(per_token=-gate * advantages, stats=ratio_stats(log_ratio, mask, torch.zeros_like(mask)))


def m2po(logprobs: Tensor, behavior: Tensor, advantages: Tensor, mask: Tensor, kept: Tensor) -> Loss:
    """-r A with r = exp(logprobs - behavior) at the tokens `kept`, 0 at the others, all `[N]`.

    M2PO, Zheng et al. 2025, arXiv 2510.01161, with `kept` (bool) from `corrections.second_moment_mask` over the
    whole batch. There is no clip: the mask bounds the ratios. A token that it rejected gives 0 and still counts,
    as the paper's denominator does. Gradients flow through `logprobs` alone.

    Stats as of `clipped_surrogate`; `clipped` counts the tokens rejected.
    """
    advantages = keep(advantages.detach(), mask & kept)
    log_ratio = keep(logprobs, mask) - keep(behavior.detach(), mask)
    limited = torch.where(mask & kept, log_ratio, torch.zeros_like(log_ratio))
    return Loss(per_token=-limited.exp() * advantages, stats=ratio_stats(log_ratio, mask, ~kept))


def check_clip(clip_low: float, clip_high: float) -> None:
    if not 0 <= clip_low <= 1:
        raise ValueError(f"clip_low is {clip_low}; a ratio is never negative, so use 0 to 1")
    if not clip_high >= 0:
        raise ValueError(f"clip_high is {clip_high}; use 0 or more")


def log_bounds(clip_low: float, clip_high: float) -> tuple[float, float]:
    """The logarithms of 1 - clip_low and 1 + clip_high."""
    return (math.log1p(-clip_low) if clip_low < 1 else -math.inf), math.log1p(clip_high)


def limit(
    log_ratio: Tensor, advantages: Tensor, *, below: float, above: float, dual: float = math.inf
) -> tuple[Tensor, Tensor]:
    """The log-ratio whose exponential times A is min(r A, clip(r) A), `[N]`, and where that took the gradient away.

    The minimum bounds r only from above where A > 0 and only from below where A < 0 (and there, from above by
    exp(`dual`)). Bounding log r instead of r is the same, and a ratio beyond float's range cannot turn a gradient
    into NaN. `below` and `above` are logarithms.
    """
    gains = advantages >= 0
    upper = torch.where(gains, log_ratio.new_tensor(above), log_ratio.new_tensor(dual))
    lower = torch.where(gains, log_ratio.new_tensor(-math.inf), log_ratio.new_tensor(below))
    limited = torch.clamp(log_ratio, min=lower, max=upper)
    return limited, ((log_ratio > upper) | (log_ratio < lower)).detach() & (advantages != 0)
