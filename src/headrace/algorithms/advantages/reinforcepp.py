"""REINFORCE++: sample rewards `[S]` to advantages per token `[N]`, whitened over the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.algorithms.advantages.groups import group_normalized
from headrace.algorithms.advantages.returns import discounted_returns
from headrace.algorithms.advantages.whitening import whiten as whitened
from headrace.algorithms.segments import as_float, keep, rows_of
from headrace.algorithms.shaping import token_rewards


def reinforce_plus_plus(
    rewards: Tensor, kl: Tensor, mask: Tensor, sample_index: Tensor, *, beta: float, gamma: float, whiten: bool = True
) -> Tensor:
    """Discounted returns of (reward on the last trained token) - beta kl_t, whitened over the batch: `[N]`.

    REINFORCE++, Hu 2025, arXiv 2501.03262. `rewards` is `[S]`, row i of the i-th sample of `sample_index`; `kl` is
    `[N]`, an estimate of KL(policy || reference) at each token (k1 in the paper), which costs at every trained
    token, the last included. With `whiten`, the tensors must be the whole batch. 0 outside the mask.

    Raises ValueError unless 0 <= gamma <= 1, or when `rewards` has not one row for each sample.
    """
    dtype = torch.promote_types(as_float(rewards).dtype, as_float(kl).dtype)
    per_token = token_rewards(rewards.double(), kl.double(), mask, sample_index, beta=beta)
    returns = discounted_returns(per_token, mask, sample_index, gamma=gamma)
    return (whitened(returns, mask) if whiten else returns).to(dtype)


def reinforce_plus_plus_baseline(
    rewards: Tensor, group_index: Tensor, mask: Tensor, sample_index: Tensor, *, whiten: bool = True
) -> Tensor:
    """Reward - mean of its group, at every trained token of the sample, whitened over the batch's tokens: `[N]`.

    REINFORCE++-baseline, Hu 2025, arXiv 2501.03262. `rewards` and `group_index` are `[S]`, row i of the i-th sample
    of `sample_index`. A group of one gives 0 before whitening, as the formula says (verl leaves its reward as it
    is). The mean and deviation of whitening weigh every trained token alike, as in verl and OpenRLHF; with
    `whiten`, the tensors must be the whole batch. The KL is no part of it: it is a loss term (k2 in the paper).

    Raises ValueError when `rewards` has not one row for each sample.
    """
    centred = group_normalized(rewards.detach(), group_index, scale="none")
    advantages = keep(centred[rows_of(sample_index, rewards.numel())], mask)
    return whitened(advantages, mask) if whiten else advantages
