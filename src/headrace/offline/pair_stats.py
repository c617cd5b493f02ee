"""What is told of pairs, whatever the loss: sums over them, under the names of `headrace.observe.offline.Measured`.

Units are whole and in their order: of the samples of a micro-batch every other one is the chosen one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.algorithms.segments import add_up, keep
from headrace.models.packing import MicroBatch
from headrace.offline.recorder import PAIRS
from headrace.training.protocol import Scalar


@torch.no_grad()
def of_preference(
    logprobs: Tensor, reference: Tensor, micro: MicroBatch, *, beta: float, per_length: bool
) -> dict[str, Scalar]:
    """`logprobs` and `reference` `[N]`, of tokens."""
    tokens = add_up(micro.mask.float(), micro.sample_index, micro.num_samples).clamp(min=1)

    def of_samples(values: Tensor) -> Tensor:
        total = add_up(keep(values.detach(), micro.mask), micro.sample_index, micro.num_samples)
        return total / tokens if per_length else total

    # The difference first: sums of log-probs are large, and their difference small.
    rewards = beta * of_samples(keep(logprobs.detach(), micro.mask) - keep(reference, micro.mask))
    policy, frozen = of_samples(logprobs), of_samples(reference)
    return {
        **_of_rewards(rewards),
        "chosen_logprob": policy[0::2].sum(),
        "rejected_logprob": policy[1::2].sum(),
        "reference_chosen_logprob": frozen[0::2].sum(),
        "reference_rejected_logprob": frozen[1::2].sum(),
    }


@torch.no_grad()
def of_scores(scores: Tensor) -> dict[str, Scalar]:
    """`scores` `[S]`, of samples."""
    return _of_rewards(scores.detach().float())


def _of_rewards(rewards: Tensor) -> dict[str, Scalar]:
    chosen, rejected = rewards[0::2], rewards[1::2]
    margins = chosen - rejected
    return {
        PAIRS: float(margins.numel()),
        "accuracy": (margins > 0).float().sum(),
        "margin": margins.sum(),
        "chosen_reward": chosen.sum(),
        "rejected_reward": rejected.sum(),
    }
