"""Rewards as the update sees them: penalties, clips, and the way onto tokens.

Every function returns a new tensor: the raw reward, which is what is logged, stays as it was.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.algorithms.segments import Segments, as_float, keep, rows_of


def clip_rewards(rewards: Tensor, *, low: float, high: float) -> Tensor:
    """Rewards `[S]` limited to [low, high] (Mnih et al. 2013, arXiv 1312.5602, section 5).

    Raises ValueError unless low <= high.
    """
    if not low <= high:
        raise ValueError(f"low is {low}, high is {high}; use low <= high")
    return as_float(rewards).clamp(low, high)


def overlong_penalty(lengths: Tensor, *, max_length: int, buffer: int, factor: float = 1.0) -> Tensor:
    """What to add to the reward of a sample that grows too long, `[S]`, from 0 down to -factor.

    DAPO's soft overlong punishment (Yu et al. 2025, arXiv 2503.14476, eq. 13): 0 up to max_length - buffer, from
    there linear to -factor at max_length, and -factor beyond. `lengths` `[S]` are generated tokens.

    Raises ValueError unless 0 <= buffer <= max_length and factor >= 0.
    """
    if not 0 <= buffer <= max_length:
        raise ValueError(f"buffer is {buffer}, max_length is {max_length}; use 0 <= buffer <= max_length")
    if factor < 0:
        raise ValueError(f"factor is {factor}; it is subtracted, use 0 or more")
    over = as_float(lengths) - (max_length - buffer)
    if buffer == 0:
        return -factor * (over > 0).to(over.dtype)
    return -factor * (over / buffer).clamp(0, 1)


def length_penalty(lengths: Tensor, correct: Tensor, group_index: Tensor, *, weight: float = 1.0) -> Tensor:
    """What to add to the reward to prefer a group's short answers, `[S]`, within weight times [-1/2, 1/2].

    Kimi k1.5's length reward (Kimi Team 2025, arXiv 2501.12599, section 2.3.3): 1/2 - (length - shortest) /
    (longest - shortest) of the group where the answer is `correct` (bool `[S]`), and the same but never above 0
    where it is not. 0 for a group whose lengths are all alike.
    """
    lengths = as_float(lengths)
    groups = Segments.of(group_index)
    shortest = groups.spread(groups.lowest(lengths))
    span = groups.spread(-groups.lowest(-lengths)) - shortest
    share = 0.5 - (lengths - shortest) / torch.where(span > 0, span, torch.ones_like(span))
    limited = torch.where(correct, share, share.clamp(max=0))
    return weight * torch.where(span > 0, limited, torch.zeros_like(limited))


def token_rewards(rewards: Tensor, kl: Tensor, mask: Tensor, sample_index: Tensor, *, beta: float) -> Tensor:
    """Rewards per token `[N]`: -beta kl at each token inside the mask, and on a sample's last one its reward too.

    KL as a penalty in the reward: Ziegler et al. 2019, arXiv 1909.08593, eq. 2; per token, Ouyang et al. 2022,
    arXiv 2203.02155. `rewards` is `[S]`, row i of the i-th sample of `sample_index`; `kl` is `[N]`. 0 outside the
    mask. The reward of a sample without a token inside lands nowhere. Nothing here has a gradient.

    Raises ValueError when `rewards` has not one row for each sample.
    """
    penalty = -beta * keep(kl.detach(), mask)
    rewards = as_float(rewards.detach())
    sample = rows_of(sample_index, rewards.numel())
    place = torch.arange(mask.numel(), device=mask.device)
    last = place.new_full((rewards.numel(),), -1)
    last = last.scatter_reduce(0, sample[mask], place[mask], "amax")
    total = penalty.to(torch.promote_types(penalty.dtype, rewards.dtype), copy=True)
    total[last[last >= 0]] += rewards[last >= 0].to(total.dtype)
    return total
