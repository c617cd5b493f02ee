"""The policy loss as the trainer calls it: columns of a micro-batch in, sums out."""

from __future__ import annotations

from torch import Tensor

from headrace.algorithms.policy_loss import PolicyLoss
from headrace.models.packing import MicroBatch
from headrace.training.protocol import LossTerms


class PolicyObjective:
    def __init__(self, loss: PolicyLoss) -> None:
        self._loss = loss

    def __call__(self, logprobs: Tensor, micro: MicroBatch) -> LossTerms:
        """`logprobs`: `[N]`, of the policy that is being differentiated."""
        terms = self._loss(
            logprobs,
            behavior=micro.columns["logprobs"],
            proximal=micro.columns.get("proximal"),
            advantages=micro.columns["advantages"],
            mask=micro.mask,
            sample_index=micro.sample_index,
        )
        return LossTerms(
            numerator=terms.numerator,
            denominator=terms.denominator,
            stats=dict(terms.stats),
            maxima=dict(terms.maxima),
        )
