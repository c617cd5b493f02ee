"""How much better each sample did than its group: rewards `[S]` to advantages `[S]`."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from headrace.algorithms.segments import Segments, as_float

Scale = Literal["group_std", "batch_std", "none"]


def group_normalized(rewards: Tensor, group_index: Tensor, *, scale: Scale = "group_std", eps: float = 1e-6) -> Tensor:
    """(reward - mean of its group) / (std + eps), shape `[S]`. A group of one gives 0.

    `scale` says whose standard deviation (unbiased, n - 1) divides: the group's (GRPO, Shao et al. 2024,
    arXiv 2402.03300, section 4.1.2), that of all rewards given here (Liu et al. 2025, "Tricks or Traps?",
    arXiv 2508.08221), or `none` (Dr. GRPO, Liu et al. 2025, arXiv 2503.20783), where `eps` has no part. With
    `batch_std`, `rewards` must be the whole batch.
    """
    rewards = as_float(rewards)
    groups = Segments.of(group_index)
    centred, size = _centre(rewards, groups)
    if scale == "none":
        return centred
    if scale == "group_std":
        variance = groups.sum(centred.square()) / (size - 1).clamp(min=1)
        return centred / (groups.spread(variance.sqrt()) + eps)
    if scale == "batch_std":
        spread = rewards - rewards.mean()
        variance = spread.square().sum() / max(rewards.numel() - 1, 1)
        return centred / (variance.sqrt() + eps)
    raise ValueError(f"scale is {scale!r}; use 'group_std', 'batch_std' or 'none'")


def leave_one_out(rewards: Tensor, group_index: Tensor) -> Tensor:
    """reward - mean reward of the group's others, shape `[S]`. A group of one has no others, and gives 0.

    RLOO: Kool et al. 2019; Ahmadian et al. 2024, arXiv 2402.14740. Computed as n / (n - 1) times the distance
    from the mean of all n, which is the same.
    """
    rewards = as_float(rewards)
    groups = Segments.of(group_index)
    centred, size = _centre(rewards, groups)
    return centred * groups.spread(size / (size - 1).clamp(min=1))


def opo(rewards: Tensor, lengths: Tensor, group_index: Tensor) -> Tensor:
    """reward - mean reward of its group weighted by length, shape `[S]`. A group of one gives 0.

    OPO, Hao et al. 2025, arXiv 2505.23585: the baseline of least variance, sum(length reward) / sum(length), where
    the squared norm of a sample's gradient grows as its length. `lengths` `[S]` are trained tokens; where a whole
    group has none, its samples weigh alike. (verl leaves the reward of a group of one as it is; the formula gives
    0.)
    """
    rewards = as_float(rewards)
    groups = Segments.of(group_index)
    above_lowest = rewards - groups.spread(groups.lowest(rewards))
    weight = lengths.to(rewards.dtype)
    weight = torch.where(groups.spread(groups.sum(weight)) > 0, weight, torch.ones_like(weight))
    baseline = groups.sum(weight * above_lowest) / groups.sum(weight)
    return above_lowest - groups.spread(baseline)


def _centre(rewards: Tensor, groups: Segments) -> tuple[Tensor, Tensor]:
    """Distance from the group's mean `[S]`, and the groups' sizes.

    Means are taken over distances from the group's lowest reward: equal rewards give exactly 0, which a
    rounded mean, divided by a rounded standard deviation, would turn into a signal.
    """
    above_lowest = rewards - groups.spread(groups.lowest(rewards))
    size = groups.sum(torch.ones_like(rewards))
    return above_lowest - groups.spread(groups.sum(above_lowest) / size), size
