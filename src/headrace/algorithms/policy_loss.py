"""The policy loss that a config describes, from flat token tensors to sums that micro-batches add up."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.algorithms import kl
from headrace.algorithms.aggregation import aggregate
from headrace.algorithms.corrections import behavior_weights
from headrace.algorithms.losses import Stats, clipped_surrogate
from headrace.algorithms.segments import keep
from headrace.config.algorithm import AlgorithmConfig


@dataclass(frozen=True, slots=True)
class LossTerms:
    """What one micro-batch adds to its batch: the loss is sum of numerators / sum of denominators."""

    numerator: Tensor
    """Scalar; its gradient is what accumulates."""
    denominator: Tensor
    """Scalar, detached."""
    stats: Stats
    """Sums over the tokens inside the mask; divide by `tokens` for means. `mismatch_abs`: |proximal - behaviour| in
    log-probs (the proximal policy is the current one unless given). `approx_kl`: k3 of KL(behaviour || current).
    `clipped`: tokens whose gradient the clip took away. `behavior_weight`: the weights applied (1 each for `naive`)."""
    maxima: Stats
    """Largest over the tokens inside the mask, 0 for none. `mismatch_abs`."""


class PolicyLoss:
    """The clipped surrogate, `decoupled` or `naive`, aggregated as `config` says.

    `decoupled`: the ratio current / proximal is clipped, and weighted by the truncated, constant proximal /
    behaviour (AReaL, arXiv 2505.24298). `naive`: the ratio current / behaviour is clipped, with no weight
    (PPO as if the tokens were fresh).
    """

    def __init__(self, config: AlgorithmConfig) -> None:
        self._config = config

    def __call__(
        self,
        logprobs: Tensor,
        *,
        behavior: Tensor,
        proximal: Tensor | None,
        advantages: Tensor,
        mask: Tensor,
        sample_index: Tensor,
    ) -> LossTerms:
        """All tensors `[N]`. `proximal` None: the current policy is the proximal one (one step per batch)."""
        config = self._config
        current = logprobs.detach()
        anchor = current if proximal is None else proximal
        if config.objective == "naive":
            anchor = behavior
        loss = clipped_surrogate(
            logprobs, anchor, advantages, mask, clip_low=config.clip_low, clip_high=config.clip_high
        )
        per_token, weight_sum = loss.per_token, loss.stats["tokens"]
        if config.objective == "decoupled":
            weights = behavior_weights(
                anchor, behavior, mask, sample_index, low=config.behavior.low, high=config.behavior.high
            )
            per_token, weight_sum = per_token * weights.per_token, weights.stats["weight"]
        numerator, denominator = aggregate(per_token, mask, sample_index, mode=config.aggregation)

        # Between engine and trainer; what earlier steps on the same batch changed is none of it.
        mismatch = keep(kl.estimate(current if proximal is None else proximal, behavior, kind="abs"), mask)
        stats = {
            "tokens": loss.stats["tokens"],
            "mismatch_abs": mismatch.sum(),
            "approx_kl": keep(kl.estimate(behavior, current, kind="k3"), mask).sum(),
            "clipped": loss.stats["clipped"],
            "behavior_weight": weight_sum,
        }
        largest = mismatch.max() if mismatch.numel() else torch.zeros_like(denominator)
        return LossTerms(numerator, denominator, stats, {"mismatch_abs": largest})
