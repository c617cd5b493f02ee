"""Rewards over time: token rewards `[N]` to discounted returns and advantages `[N]`.

The time steps of a sample are its tokens inside the mask, in order: what stands between two of them (a tool's
answer, the next user turn) takes no time, is no state, and a reward written there is not seen. After the last
step the value is 0, unless it is given: a sample that was cut off had more to come. Sums over time run in float64,
whatever goes in: over thousands of steps float32 would show.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.algorithms.segments import as_float, discounted_sums, rows_of


def discounted_returns(rewards: Tensor, mask: Tensor, sample_index: Tensor, *, gamma: float) -> Tensor:
    """r_t + gamma r_(t+1) + gamma^2 r_(t+2) + ... over the sample's time steps, `[N]`; 0 outside the mask.

    Sutton & Barto 2018, eq. 3.8, counted from the present step. Raises ValueError unless 0 <= gamma <= 1.
    """
    check_factor("gamma", gamma)
    rewards = as_float(rewards.detach())
    return _at(mask, discounted_sums(rewards[mask].double(), sample_index[mask], gamma), rewards.dtype)


def gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    sample_index: Tensor,
    *,
    gamma: float,
    lam: float,
    last_values: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates `[N]`, and the critic's targets (advantage + value) `[N]`; 0 outside the mask.

    A_t = sum over l of (gamma lam)^l delta_(t+l), with delta_t = r_t + gamma V_(t+1) - V_t (Schulman et al. 2015,
    arXiv 1506.02438, eq. 16). `rewards` and `values` are `[N]`; the value at a token is that of the state in which
    it was chosen. `last_values` is `[S]`, row i of the i-th sample of `sample_index`: the value of the state that the
    sample's last step led to, which is the last delta's V_(t+1); 0 where the sample ended there, which is every sample
    unless given (Pardo et al. 2018, arXiv 1712.00378: a limit on time is no end). Not whitened. Neither result has a
    gradient.

    Raises ValueError unless 0 <= gamma <= 1 and 0 <= lam <= 1, or when `last_values` has not one row for each sample.
    """
    check_factor("gamma", gamma)
    check_factor("lam", lam)
    rewards, values = as_float(rewards.detach()), as_float(values.detach())
    dtype = torch.promote_types(rewards.dtype, values.dtype)
    steps, value, sample = rewards[mask].double(), values[mask].double(), sample_index[mask]
    following = torch.cat([value[1:], value.new_zeros(min(1, value.numel()))])
    goes_on = torch.cat([sample[1:] == sample[:-1], sample.new_zeros(min(1, sample.numel()), dtype=torch.bool)])
    at_end = torch.zeros_like(following) if last_values is None else _at_ends(last_values, sample_index)[mask]
    delta = steps + gamma * torch.where(goes_on, following, at_end) - value
    advantages = discounted_sums(delta, sample, gamma * lam)
    return _at(mask, advantages, dtype), _at(mask, advantages + value, dtype)


def check_factor(name: str, factor: float) -> None:
    if not 0 <= factor <= 1:
        raise ValueError(f"{name} is {factor}; use 0 to 1")


def _at_ends(last_values: Tensor, sample_index: Tensor) -> Tensor:
    """[N]: at each token, what `last_values` has for its sample."""
    return last_values.detach().double()[rows_of(sample_index, last_values.numel())]


def _at(mask: Tensor, inside: Tensor, dtype: torch.dtype) -> Tensor:
    spread = torch.zeros(mask.shape, dtype=dtype, device=inside.device)
    spread[mask] = inside.to(dtype)
    return spread
