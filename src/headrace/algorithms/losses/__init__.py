"""Losses: one value per token (or per pair of samples), left for `aggregation` to sum."""

from headrace.algorithms.losses.likelihood import distillation, distillation_advantages, reinforce, sft
from headrace.algorithms.losses.pairs import preference, reward_ranking
from headrace.algorithms.losses.regularizers import entropy, kl_term
from headrace.algorithms.losses.sequence import geometric_mean, gspo
from headrace.algorithms.losses.surrogate import cispo, clipped_surrogate, m2po, sapo
from headrace.algorithms.losses.terms import Loss, PairLoss, Stats
from headrace.algorithms.losses.value import value_loss

__all__ = [
    "Loss",
    "PairLoss",
    "Stats",
    "cispo",
    "clipped_surrogate",
    "distillation",
    "distillation_advantages",
    "entropy",
    "geometric_mean",
    "gspo",
    "kl_term",
    "m2po",
    "preference",
    "reinforce",
    "reward_ranking",
    "sapo",
    "sft",
    "value_loss",
]
