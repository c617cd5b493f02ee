"""Weights that correct for tokens sampled by another policy than the one that anchors the update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headrace.algorithms import kl
from headrace.algorithms.losses.terms import Stats
from headrace.algorithms.segments import Segments, keep

Level = Literal["token", "sequence", "geometric"]
Mode = Literal["truncate", "mask", "clip"]


@dataclass(frozen=True, slots=True)
class Weights:
    per_token: Tensor
    """`[N]`, to multiply a loss per token; 0 outside the mask."""
    stats: Stats


def behavior_weights(
    proximal: Tensor,
    behavior: Tensor,
    mask: Tensor,
    sample_index: Tensor,
    *,
    level: Level = "token",
    mode: Mode = "truncate",
    low: float,
    high: float,
    veto: float | None = None,
) -> Weights:
    """Importance weights proximal / behaviour, from log-probs `[N]`, kept within [low, high].

    The first factor of the decoupled objective (Hilton et al. 2022, arXiv 2110.00641, eq. 4; AReaL, Fu et al.
    2025, arXiv 2505.24298), limited as in truncated importance sampling (Ionides 2008; IMPALA, arXiv
    1802.01561).

    - `level`: the weight is that of the token; of the `sequence` (product of the weights of the sample's
      tokens inside the mask, the same for all of them); or `geometric` (their geometric mean).
    - `mode`: `truncate` limits a weight to [low, high], as a constant; `mask` sets a weight outside to 0, as
      a constant; `clip` has the value of `truncate`, and its gradient flows through `proximal` where it is
      inside.
    - `veto`: a sample with a token whose own weight is below this gets weight 0 throughout.

    Stats: `tokens`; `ratio` and `kl` (sums over tokens of the token's own proximal / behaviour, and of k3 of
    KL(behaviour || proximal), before any limit); `outside` (tokens whose weight at this level was outside
    [low, high]); `vetoed` (tokens of samples vetoed); `weight` and `weight_squared` (sums of the weights
    returned), of which `effective_sample_size` makes the effective number of tokens.

    Raises ValueError unless 0 <= low <= high.
    """
    if not 0 <= low <= high:
        raise ValueError(f"low is {low}, high is {high}; use 0 <= low <= high")
    proximal, behavior = keep(proximal, mask), keep(behavior.detach(), mask)
    token_log = proximal - behavior
    log_weight = _at_level(token_log, mask, sample_index, level)

    raw = log_weight.detach().exp()
    outside = ((raw < low) | (raw > high)) & mask
    if mode == "truncate":
        weight = raw.clamp(low, high)
    elif mode == "mask":
        weight = torch.where(outside, 0.0, raw)
    elif mode == "clip":
        # Limiting the logarithm keeps a weight beyond float's range from turning the gradient into NaN.
        weight = log_weight.clamp(_log(low), _log(high)).exp()
    else:
        raise ValueError(f"mode is {mode!r}; use 'truncate', 'mask' or 'clip'")

    token_log = token_log.detach()
    vetoed = torch.zeros_like(mask)
    if veto is not None:
        samples = Segments.of(sample_index)
        catastrophic = keep(token_log.exp() < veto, mask)
        vetoed = samples.spread(samples.sum(catastrophic) > 0) & mask
    weight = torch.where(mask & ~vetoed, weight, 0.0)

    used = weight.detach()
    stats = {
        "tokens": mask.sum().to(used.dtype),
        "ratio": keep(token_log.exp(), mask).sum(),
        "kl": kl.estimate(behavior, proximal.detach(), kind="k3").sum(),
        "outside": outside.sum().to(used.dtype),
        "vetoed": vetoed.sum().to(used.dtype),
        "weight": used.sum(),
        "weight_squared": used.square().sum(),
    }
    return Weights(per_token=weight, stats=stats)


def effective_sample_size(weight: float, weight_squared: float) -> float:
    """Kish's effective number of tokens, (sum w)^2 / sum w^2, of the stats of these names or of sums of them; 0 for
    none."""
    return weight**2 / weight_squared if weight_squared > 0 else 0.0


def second_moment_mask(
    logprobs: Tensor, behavior: Tensor, mask: Tensor, *, threshold: float = 0.04, advantages: Tensor | None = None
) -> Tensor:
    """Which tokens M2PO keeps, bool `[N]`: the most for which the mean of (logprobs - behavior)^2 is <= threshold.

    M2PO, Zheng et al. 2025, arXiv 2510.01161: tokens are rejected from the largest square down, until the mean over
    those left is within the threshold (the default is the paper's). With `advantages` `[N]`, only tokens that the
    update drives further from the behaviour policy are looked at and rejected (A > 0 with a ratio above 1, A < 0
    with one below), as in the authors' code; without, all. Tokens with equal squares stay or go together, so that
    order has no part. False outside the mask.

    The mean is over the batch: `mask` must be the whole batch's, and `logprobs` those that the batch begins with.

    Raises ValueError for a negative threshold.
    """
    if not threshold >= 0:
        raise ValueError(f"threshold is {threshold}; use 0 or more")
    log_ratio = keep(logprobs.detach(), mask) - keep(behavior.detach(), mask)
    looked_at = mask
    if advantages is not None:
        gains = keep(advantages.detach(), mask)
        looked_at = ((gains > 0) & (log_ratio > 0)) | ((gains < 0) & (log_ratio < 0))
    squares = log_ratio.square()
    ascending = squares[looked_at].sort().values
    means = ascending.cumsum(0) / torch.arange(1, ascending.numel() + 1, device=mask.device)
    # Means of the k smallest grow with k. Those beyond the last that fits go, and with them whatever equals them.
    fitting = int((means <= threshold).sum())
    if fitting == ascending.numel():
        return mask.clone()
    return mask & (~looked_at | (squares < ascending[fitting]))


def _at_level(token_log: Tensor, mask: Tensor, sample_index: Tensor, level: Level) -> Tensor:
    if level == "token":
        return token_log
    if level not in ("sequence", "geometric"):
        raise ValueError(f"level is {level!r}; use 'token', 'sequence' or 'geometric'")
    samples = Segments.of(sample_index)
    total = samples.sum(token_log)
    if level == "geometric":
        total = total / samples.sum(mask.to(token_log.dtype)).clamp(min=1)
    return samples.spread(total)


def _log(bound: float) -> float:
    return math.log(bound) if bound > 0 else -math.inf
