"""The policy loss that a config describes, from flat token tensors to sums that micro-batches add up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from headrace.algorithms import aggregation, corrections, kl, losses, proximal
from headrace.algorithms.kl_controllers import Coefficient, KLCoefficient
from headrace.algorithms.losses import Loss, Stats
from headrace.algorithms.losses.regularizers import KLTerm
from headrace.algorithms.pieces import Pieces
from headrace.algorithms.segments import keep
from headrace.config.algorithm import AlgorithmConfig

OWN = "own/"
"""Begins the name of a sum that a piece of the user's own reports."""


@dataclass(frozen=True, slots=True)
class LossTerms:
    """What one micro-batch adds to its batch: the loss is sum of numerators / sum of denominators."""

    numerator: Tensor
    """Scalar; its gradient is what accumulates."""
    denominator: Tensor
    """Scalar, detached."""
    stats: Stats
    """Sums over the tokens inside the mask; divide by `tokens` for means. `drift_abs`: |trainer - behaviour| in
    log-probs, `trainer` being the weights that the batch begins with. `mismatch_abs`: the same over the
    `mismatch_tokens` that are fresh. `approx_kl`: k3 of KL(behaviour || current). `step_kl`: k3 of KL(trainer ||
    current), which is what the steps on this batch have moved.
    `clipped`: tokens whose gradient the clip took away. `behavior_weight`: the weights applied (1 each for `naive`),
    `behavior_weight_squared` their squares; `behavior_outside`: those outside their bounds. `reference_kl`: the
    estimate that the config names, with a reference. `entropy`, if there is a bonus. `own/NAME`: the stats of pieces
    of the user's own. `whole_entropy` and `kept_mass` where they are given."""
    maxima: Stats
    """Largest over the tokens inside the mask, 0 for none. `drift_abs`, and `mismatch_abs` over the fresh ones."""


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
    """Of the current policy cut to the kept sets, differentiable."""
    kept: Tensor | None = None
    """`m2po`: which tokens its mask keeps; all unless given."""
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    """What a user's own loss is called with beside."""
    trainer: Tensor | None = None
    """Log-probs under the weights that the batch begins with, or the policy's own where those are not known; `proximal`
    unless given."""
    fresh: Tensor | None = None
    """Which tokens these weights sampled, so that trainer and engine should agree on them; all unless given."""
    whole_entropy: Tensor | None = None
    """Of the current policy over the whole vocabulary."""
    kept_mass: Tensor | None = None
    """Of the current policy on the kept sets."""


class PolicyLoss:
    """The surrogate that `config` names, `decoupled` or `naive`, with its added terms, aggregated.

    `decoupled`: the ratio current / proximal is limited, and weighted by the limited, constant proximal / behaviour
    (AReaL, arXiv 2505.24298). `naive`: the ratio is current / behaviour, with no weight (PPO as if the tokens were
    fresh).
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        pieces: Pieces | None = None,
        coefficient: Coefficient | None = None,
        *,
        max_length: int | None = None,
    ) -> None:
        """`coefficient`: of a KL in the loss; that of `config` unless given. `max_length`: tokens that the policy may
        sample in a turn; the aggregation `constant_length` needs it."""
        self._config = config
        self._pieces = pieces or Pieces()
        self._max_length = max_length
        self._coefficient: Coefficient = coefficient or KLCoefficient(config.kl)

    def __call__(self, logprobs: Tensor, data: PolicyTokens) -> LossTerms:
        config, mask = self._config, data.mask
        current = logprobs.detach()
        start = current if data.proximal is None else data.proximal
        anchor = data.behavior if config.objective == "naive" else start
        loss = self._loss(logprobs, anchor, _advantages(data, anchor), data)
        per_token = loss.per_token
        extra = {} if self._pieces.loss is None else _own_stats(loss.stats)
        tokens = mask.sum().to(per_token.dtype)
        weight_sum = weight_squares = tokens
        outside = torch.zeros_like(tokens)
        if config.objective == "decoupled":
            weights = self._behavior_weights(anchor, data)
            per_token = per_token * weights.per_token
            of_tokens = keep(weights.per_token.detach(), mask)
            weight_sum, weight_squares = of_tokens.sum(), of_tokens.square().sum()
            outside = weights.stats.get("outside", outside)
            extra |= {} if self._pieces.behavior is None else _own_stats(weights.stats)
        if data.reference is not None:
            term = self._kl(logprobs, data.reference, mask)
            extra["reference_kl"] = term.detach().sum()
            if config.kl.place == "loss" and config.kl.coefficient:
                per_token = per_token + self._coefficient.value * term
        if data.entropy is not None:
            gain = keep(data.entropy, mask)
            extra["entropy"] = gain.detach().sum()
            per_token = per_token - config.entropy * gain
        for name, values in (("whole_entropy", data.whole_entropy), ("kept_mass", data.kept_mass)):
            if values is not None:
                extra[name] = keep(values, mask).sum()
        numerator, denominator = self._aggregate(per_token, mask, data.sample_index)

        # What earlier steps on the same batch changed is part of neither.
        trainer = start if data.trainer is None else data.trainer
        drift = keep(kl.estimate(trainer, data.behavior, kind="abs"), mask)
        fresh = mask if data.fresh is None else mask & data.fresh
        mismatch = keep(drift, fresh)
        stats = {
            "tokens": tokens,
            "drift_abs": drift.sum(),
            "mismatch_abs": mismatch.sum(),
            "mismatch_tokens": fresh.sum().to(per_token.dtype),
            "approx_kl": keep(kl.estimate(data.behavior, current, kind="k3"), mask).sum(),
            "step_kl": keep(kl.estimate(trainer, current, kind="k3"), mask).sum(),
            "clipped": loss.stats.get("clipped", torch.zeros_like(tokens)),
            "behavior_weight": weight_sum,
            "behavior_weight_squared": weight_squares,
            "behavior_outside": outside,
            **extra,
        }
        maxima = {
            name: apart.max() if apart.numel() else torch.zeros_like(denominator)
            for name, apart in (("drift_abs", drift), ("mismatch_abs", mismatch))
        }
        return LossTerms(numerator, denominator, stats, maxima)

    def _behavior_weights(self, anchor: Tensor, data: PolicyTokens) -> corrections.Weights:
        limits = self._config.behavior
        if self._pieces.behavior is not None:
            return self._pieces.behavior(anchor, data.behavior, data.mask, data.sample_index)
        return corrections.behavior_weights(
            anchor,
            data.behavior,
            data.mask,
            data.sample_index,
            level=limits.level,
            mode=cast(corrections.Mode, limits.mode),
            low=limits.low,
            high=limits.high,
            veto=limits.veto,
        )

    def _kl(self, logprobs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
        """KL(policy || reference) at each token, [N]."""
        if self._pieces.kl is not None:
            return keep(self._pieces.kl(logprobs, reference), mask)
        return losses.kl_term(logprobs, reference, mask, kind=cast(KLTerm, self._config.kl.estimator)).per_token

    def _aggregate(self, per_token: Tensor, mask: Tensor, sample_index: Tensor) -> tuple[Tensor, Tensor]:
        if self._pieces.aggregation is not None:
            numerator, denominator = self._pieces.aggregation(per_token, mask, sample_index)
            return numerator, denominator.detach()
        mode = cast(aggregation.Mode, self._config.aggregation)
        return aggregation.aggregate(per_token, mask, sample_index, mode=mode, length=self._max_length)

    def _loss(self, logprobs: Tensor, anchor: Tensor, advantages: Tensor, data: PolicyTokens) -> Loss:
        config = self._config
        mask, index = data.mask, data.sample_index
        if self._pieces.loss is not None:
            own = logprobs.clone()  # which it may change
            return self._pieces.loss(own, anchor, advantages, mask, index, **data.columns)
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


def _own_stats(stats: Stats) -> Stats:
    return {f"{OWN}{name}": torch.as_tensor(value).detach() for name, value in stats.items()}


def interpolated(current: Tensor, behavior: Tensor, versions: Tensor, batch: int, progress: float) -> Tensor:
    """Log-probs [N] of the proximal policy, from [N] each: that of batch k is version k, and its steps lead to version
    k + 1. `progress`: the share of them that led to the current policy, which is the proximal one where it is 0."""
    if progress == 0:
        return current.detach()
    return proximal.loglinear(current, behavior, versions, proximal_version=batch, current_version=batch + progress)
