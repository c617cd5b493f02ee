"""The reward model: its score is the reward, or is added to what the reward functions gave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from headrace.experience.sample import Group, Sample
from headrace.models.packing import MicroBatch, PackRow, pack, plan_microbatches
from headrace.rollout.rewards.outcome import is_reward
from headrace.runtime.protocol import Runtime

LANE = "reward"


@dataclass(frozen=True, slots=True)
class ModelReward:
    """Scores on a lane of its own."""

    score: Callable[[MicroBatch], Tensor]
    """[S] float32, blocking: a score for each sample."""
    weight: float
    max_tokens: int
    """Budget of one forward pass; a longer sample is one of its own."""
    runtime: Runtime

    async def scores(self, samples: Sequence[Sample]) -> list[float]:
        """The model's own, of each sample; some may not be finite."""
        rows = [_up_to_the_answer(sample) for sample in samples]
        scores = [0.0] * len(rows)
        for places in plan_microbatches([len(row) for row in rows], self.max_tokens):
            scored = await self.runtime.compute(LANE, self.score, pack([rows[place] for place in places]))
            for place, score in zip(places, scored.tolist(), strict=True):
                scores[place] = score
        return scores

    def total(self, given: float | None, score: float) -> float | None:
        """The reward of a sample: what it was given, or 0, and weight x score; None if that is no reward."""
        reward = (given or 0.0) + self.weight * score
        return reward if is_reward(reward) else None

    async def scored(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with the rewards of their trainable samples added to; None where the sum is no reward."""
        samples = [(group.last_of(sample.episode), sample) for group in groups for sample in group.trainable]
        scores = await self.scores([last for last, _ in samples])
        rewards = iter(self.total(sample.reward, score) for (_, sample), score in zip(samples, scores, strict=True))
        return [
            replace(
                group,
                samples=tuple(
                    replace(sample, reward=next(rewards)) if sample.is_trainable else sample for sample in group.samples
                ),
            )
            for group in groups
        ]


def _up_to_the_answer(sample: Sample) -> PackRow:
    """Up to the last token that the policy chose: what an environment said after it is nothing to judge."""
    chosen = np.flatnonzero(sample.loss_mask)
    end = chosen[-1] + 1 if len(chosen) else len(sample)
    return PackRow(sample.tokens[:end], sample.loss_mask[:end])
