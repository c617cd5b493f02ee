"""The policy loss that a config describes, from flat token tensors to sums that micro-batches add up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headrace.algorithms import kl, losses, proximal
from headrace.algorithms.aggregation import aggregate
from headrace.algorithms.corrections import behavior_weights
from headrace.algorithms.losses import Loss, Stats
from headrace.algorithms.segments import keep
from headrace.config.algorithm import AlgorithmConfig

Surrogate = Callable[..., Loss]
"""A user's own: (logprobs, anchor, advantages, mask, sample_index, **columns), all [N], to a loss per token."""


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
    `clipped`: tokens whose gradient the clip took away. `behavior_weight`: the weights applied (1 each for `naive`),
    `behavior_weight_squared` their squares; `behavior_outside`: those outside their bounds. `reference_kl`: the
    estimate that the config names, 0 without a reference. `entropy`: 0 unless there is a bonus."""
    maxima: Stats
    """Largest over the tokens inside the mask, 0 for none. `mismatch_abs`."""


@dataclass(frozen=True, slots=True)
class PolicyTokens:
    """One micro-batch. All tensors [N]."""

    mask: Tensor
    sample_index: Tensor
    behavior: Tensor
    advantages: Tensor | None = None
    """None: worked out from `teacher`."""
    teacher: Tensor | None = None
    """Log-probs of the teacher, for `distillation`."""
    proximal: Tensor | None = None
    """None: the current policy is the proximal one (one step per batch)."""
    reference: Tensor | None = None
    entropy: Tensor | None = None
    """Of the current policy, differentiable."""
    kept: Tensor | None = None
    """`m2po`: which tokens its mask keeps; all unless given."""
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    """What a user's own surrogate is called with beside."""


class PolicyLoss:
    """The surrogate that `config` names, `decoupled` or `naive`, with its added terms, aggregated.

    `decoupled`: the ratio current / proximal is limited, and weighted by the limited, constant proximal / behaviour
    (AReaL, arXiv 2505.24298). `naive`: the ratio is current / behaviour, with no weight (PPO as if the tokens were
    fresh).
    """

    def __init__(self, config: AlgorithmConfig, custom: Surrogate | None = None) -> None:
        """`custom`: the user's own surrogate, where `config.loss` is a path."""
        self._config = config
        self._surrogate = custom

    def __call__(self, logprobs: Tensor, data: PolicyTokens) -> LossTerms:
        config, mask = self._config, data.mask
        current = logprobs.detach()
        start = current if data.proximal is None else data.proximal
        anchor = data.behavior if config.objective == "naive" else start
        loss = self._loss(logprobs, anchor, _advantages(data, anchor), data)
        per_token = loss.per_token
        tokens = mask.sum().to(per_token.dtype)
        weight_sum = weight_squares = tokens
        outside = torch.zeros_like(tokens)
        if config.objective == "decoupled":
            limits = config.behavior
            weights = behavior_weights(
                anchor,
                data.behavior,
                mask,
                data.sample_index,
                level=limits.level,
                mode=limits.mode,
                low=limits.low,
                high=limits.high,
                veto=limits.veto,
            )
            per_token = per_token * weights.per_token
            weight_sum, outside = weights.stats["weight"], weights.stats["outside"]
            weight_squares = weights.stats["weight_squared"]
        reference_kl = entropy = torch.zeros_like(tokens)
        if data.reference is not None:
            term = losses.kl_term(logprobs, data.reference, mask, kind=config.kl.estimator)
            reference_kl = term.stats["kl"]
            if config.kl.place == "loss":
                per_token = per_token + config.kl.coefficient * term.per_token
        if data.entropy is not None:
            gain = keep(data.entropy, mask)
            entropy = gain.detach().sum()
            per_token = per_token - config.entropy * gain
        numerator, denominator = aggregate(per_token, mask, data.sample_index, mode=config.aggregation)

        # Between engine and trainer; what earlier steps on the same batch changed is none of it.
        mismatch = keep(kl.estimate(start, data.behavior, kind="abs"), mask)
        stats = {
            "tokens": tokens,
            "mismatch_abs": mismatch.sum(),
            "approx_kl": keep(kl.estimate(data.behavior, current, kind="k3"), mask).sum(),
            "clipped": loss.stats.get("clipped", torch.zeros_like(tokens)),
            "behavior_weight": weight_sum,
            "behavior_weight_squared": weight_squares,
            "behavior_outside": outside,
            "reference_kl": reference_kl,
            "entropy": entropy,
        }
        largest = mismatch.max() if mismatch.numel() else torch.zeros_like(denominator)
        return LossTerms(numerator, denominator, stats, {"mismatch_abs": largest})

    def _loss(self, logprobs: Tensor, anchor: Tensor, advantages: Tensor, data: PolicyTokens) -> Loss:
        config = self._config
        mask, index = data.mask, data.sample_index
        if self._surrogate is not None:
            return self._surrogate(logprobs, anchor, advantages, mask, index, **data.columns)
        low, high = config.clip_low, config.clip_high
        match config.loss:
            case "clipped_surrogate":
                return losses.clipped_surrogate(
                    logprobs, anchor, advantages, mask, clip_low=low, clip_high=high, dual_clip=config.dual_clip
                )
            case "cispo":
                return losses.cispo(logprobs, anchor, advantages, mask, clip_low=low, clip_high=high)
            case "gspo":
                return losses.gspo(logprobs, anchor, advantages, mask, index, clip_low=low, clip_high=high)
            case "geometric_mean":
                return losses.geometric_mean(logprobs, anchor, advantages, mask, index, clip_low=low, clip_high=high)
            case "sapo":
                return losses.sapo(
                    logprobs,
                    anchor,
                    advantages,
                    mask,
                    tau_positive=config.tau_positive,
                    tau_negative=config.tau_negative,
                )
            case "m2po":
                kept = mask if data.kept is None else data.kept
                return losses.m2po(logprobs, anchor, advantages, mask, kept)
            case "reinforce":
                return losses.reinforce(logprobs, advantages, mask)
            case _:
                raise ValueError(f"no loss is named {config.loss!r}")


def _advantages(data: PolicyTokens, anchor: Tensor) -> Tensor:
    """Those given, or how much likelier the teacher finds each token than the policy that the ratio is against."""
    if data.advantages is not None:
        return data.advantages
    if data.teacher is None:
        raise ValueError("neither advantages nor a teacher's log-probs are given; add the stage that writes them")
    return losses.distillation_advantages(anchor, data.teacher, data.mask)


def proximal_logprobs(
    config: AlgorithmConfig, current: Tensor, behavior: Tensor, versions: Tensor, batch: int
) -> Tensor:
    """By interpolation, all [N]: the proximal policy of batch k is version k, and its steps lead to version k + 1."""
    return proximal.logprobs(
        config.proximal,
        current=current,
        behavior=behavior,
        versions=versions,
        proximal_version=batch,
        current_version=batch + 1,
    )
