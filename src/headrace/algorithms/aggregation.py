"""From a loss per token to one number, left as numerator and denominator so that micro-batches add up."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from headrace.algorithms.segments import Segments, keep

Mode = Literal["token_mean", "sample_mean", "sample_sum", "constant_length"]


def aggregate(
    per_token: Tensor, mask: Tensor, sample_index: Tensor, *, mode: Mode = "token_mean", length: int | None = None
) -> tuple[Tensor, Tensor]:
    """(numerator, denominator), two scalars: add both up over the batch, then divide once.

    Samples must be whole.

    - `token_mean`: sum over tokens / number of tokens (DAPO, Yu et al. 2025, arXiv 2503.14476, section 3.3).
    - `sample_mean`: sum over samples of the sample's mean / number of samples (GRPO, Shao et al. 2024, arXiv
      2402.03300, eq. 3).
    - `sample_sum`: sum over samples of the sample's sum / number of samples (REINFORCE on whole samples).
    - `constant_length`: the same / `length`, tokens that an answer may have at most (Dr. GRPO, Liu et al. 2025, arXiv
      2503.20783: `masked_sum` over the generation budget in its code). Without it a gradient grows with the tokens.

    Only tokens inside the mask count, and only samples that have one; a micro-batch without any gives (0, 0).
    A token whose weight is 0 (a rejected one) is inside the mask and counts.

    Raises ValueError for another mode, and for `constant_length` without a `length`.
    """
    values = keep(per_token, mask)
    inside = mask.to(values.dtype)
    if mode == "token_mean":
        return values.sum(), inside.sum()
    if mode not in get_args(Mode):
        raise ValueError(f"mode is {mode!r}; use {', '.join(map(repr, get_args(Mode)))}")
    samples = Segments.of(sample_index)
    tokens = samples.sum(inside)
    denominator = (tokens > 0).to(inside.dtype).sum()
    if mode == "sample_sum":
        return values.sum(), denominator
    if mode == "constant_length":
        if length is None:
            raise ValueError("mode is constant_length, and no length is given")
        return values.sum(), denominator * length
    return (samples.sum(values) / tokens.clamp(min=1)).sum(), denominator
