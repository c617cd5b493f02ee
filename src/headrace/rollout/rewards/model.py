"""The reward model: its score is the reward, or is added to what the reward functions gave."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from headrace.experience.sample import Group, Sample
from headrace.models.packing import MicroBatch, PackRow, pack, plan_microbatches
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

    async def totals(self, samples: Sequence[Sample], given: Sequence[float | None]) -> list[float]:
        """For each sample what it was given, or 0, and weight x score. Not finite where the score is not."""
        rows = [_up_to_the_answer(sample) for sample in samples]
        totals = [value or 0.0 for value in given]
        for places in plan_microbatches([len(row) for row in rows], self.max_tokens):
            scores = await self.runtime.compute(LANE, self.score, pack([rows[place] for place in places]))
            for place, score in zip(places, scores.tolist(), strict=True):
                totals[place] += self.weight * score
        return totals

    async def scored(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with the rewards of their trainable samples added to; None where the score is not finite."""
        samples = [(group.last_of(sample.episode), sample) for group in groups for sample in group.trainable]
        totals = await self.totals([last for last, _ in samples], [sample.reward for _, sample in samples])
        rewards = iter(total if math.isfinite(total) else None for total in totals)
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
