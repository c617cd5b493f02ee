"""The reward model: its score is the reward, or is added to what the reward functions gave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headrace.experience.header import SampleHeader, Span, spans_of
from headrace.experience.sample import Group, Sample
from headrace.models.packing import MicroBatch, PackRow, pack, plan_microbatches
from headrace.rewards.outcome import is_reward
from headrace.runtime.protocol import Runtime
from headrace.runtime.refs import Ref, Refs

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

    async def scores(self, samples: Sequence[Answered]) -> list[float]:
        """The model's own, of each sample; some may not be finite."""
        scores = [0.0] * len(samples)
        for places in plan_microbatches([sample.length for sample in samples], self.max_tokens):
            found = await self.runtime.compute(LANE, self._scored, [samples[place] for place in places])
            for place, score in zip(places, found, strict=True):
                scores[place] = score
        return scores

    def _scored(self, samples: Sequence[Answered]) -> list[float]:
        """On the lane."""
        return self.score(pack([sample.load() for sample in samples])).tolist()

    def total(self, given: float | None, score: float) -> float | None:
        """The reward of a sample: what it was given, or 0, and weight x score; None if that is no reward."""
        reward = (given or 0.0) + self.weight * score
        return reward if is_reward(reward) else None

    async def scored(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with the rewards of their trainable samples added to; None where the sum is no reward."""
        samples = [(group.last_of(sample.episode), sample) for group in groups for sample in group.trainable]
        scores = await self.scores([answered(last) for last, _ in samples])
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


@dataclass(frozen=True, slots=True)
class Answered:
    """A sample up to the last token that the policy chose: what an environment said after it is nothing to judge."""

    length: int
    load: Callable[[], PackRow]
    """Called on the lane."""


def answered(sample: Sample) -> Answered:
    return Answered(_end(spans_of(sample), len(sample)), lambda: up_to_the_answer(sample.tokens, sample.loss_mask))


def answered_by_ref(refs: Refs, header: SampleHeader, ref: Ref) -> Answered:
    """The same of a sample that is behind a ref."""

    def load() -> PackRow:
        columns = refs.get(ref, ("tokens", "loss_mask"))
        return up_to_the_answer(columns["tokens"], columns["loss_mask"])

    return Answered(_end(header.spans, header.length), load)


def up_to_the_answer(tokens: NDArray[np.int32], loss_mask: NDArray[np.bool_]) -> PackRow:
    chosen = np.flatnonzero(loss_mask)
    end = chosen[-1] + 1 if len(chosen) else len(tokens)
    return PackRow(tokens[:end], loss_mask[:end])


def _end(spans: Iterable[Span], length: int) -> int:
    return max((span.end for span in spans), default=length)
