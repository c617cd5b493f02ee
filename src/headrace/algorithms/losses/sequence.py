"""Surrogates of one ratio per sample: the geometric mean of its tokens' ratios current / proximal."""

from __future__ import annotations

from torch import Tensor

from headrace.algorithms.losses.surrogate import check_clip, limit, log_bounds
from headrace.algorithms.losses.terms import Loss, ratio_stats
from headrace.algorithms.segments import Segments, keep


def gspo(
    logprobs: Tensor,
    proximal: Tensor,
    advantages: Tensor,
    mask: Tensor,
    sample_index: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> Loss:
    """-min(s A, clip(s, 1 - clip_low, 1 + clip_high) A) at each token, all `[N]`; s is the sample's ratio.

    GSPO, Zheng et al. 2025, arXiv 2507.18071: s = exp(mean over the sample's tokens inside the mask of logprobs -
    proximal), in the paper's GSPO-token form: the value of s, and at each token the gradient of that token's own
    log-prob, s_t = sg[s] pi_t / sg[pi_t] (as in verl and TRL). With one advantage per sample that is GSPO itself, in
    value and gradient, once summed over the sample; the paper aggregates by `sample_mean`. Gradients flow through
    `logprobs` alone. Samples must be whole.

    Stats as of `clipped_surrogate`, except that `ratio` sums s over tokens; `kl` is of the tokens' own ratios.

    Raises ValueError for a negative clip range, or clip_low above 1.
    """
    check_clip(clip_low, clip_high)
    advantages = keep(advantages.detach(), mask)
    current = keep(logprobs, mask)
    log_ratio = current.detach() - keep(proximal.detach(), mask)
    mean = _sample_mean(log_ratio, mask, sample_index)
    below, above = log_bounds(clip_low, clip_high)
    limited, beyond = limit(mean + (current - current.detach()), advantages, below=below, above=above)
    return Loss(-limited.exp() * advantages, ratio_stats(log_ratio, mask, beyond, ratio=mean.exp()))


def geometric_mean(
    logprobs: Tensor,
    proximal: Tensor,
    advantages: Tensor,
    mask: Tensor,
    sample_index: Tensor,
    *,
    clip_low: float = 0.4,
    clip_high: float = 0.4,
) -> Loss:
    """-g A at each token, all `[N]`; g is the geometric mean of the sample's clipped ratios.

    GMPO, Zhao et al. 2025, arXiv 2507.20673: each token's ratio is clipped before the mean, to exp(clip_high) from
    above where A > 0 and to exp(-clip_low) from below where A < 0. The clip range is thus of the log-ratio; the
    defaults are the paper's. Aggregate by `sample_mean`: a sample's tokens share one value, whose gradient reaches
    every token that was not clipped. Gradients flow through `logprobs` alone. Samples must be whole.

    Stats as of `clipped_surrogate`.

    Raises ValueError for a negative clip range.
    """
    if not (clip_low >= 0 and clip_high >= 0):
        raise ValueError(f"clip_low is {clip_low}, clip_high is {clip_high}; use 0 or more")
    advantages = keep(advantages.detach(), mask)
    log_ratio = keep(logprobs, mask) - keep(proximal.detach(), mask)
    limited, beyond = limit(log_ratio, advantages, below=-clip_low, above=clip_high)
    mean = _sample_mean(limited, mask, sample_index)
    return Loss(-mean.exp() * advantages, ratio_stats(log_ratio, mask, beyond))


def _sample_mean(log_ratio: Tensor, mask: Tensor, sample_index: Tensor) -> Tensor:
    """Mean over the sample's tokens inside the mask, at each of those; 0 outside, where `log_ratio` is 0 too."""
    samples = Segments.of(sample_index)
    tokens = samples.sum(mask.to(log_ratio.dtype)).clamp(min=1)
    return keep(samples.spread(samples.sum(log_ratio) / tokens), mask)
