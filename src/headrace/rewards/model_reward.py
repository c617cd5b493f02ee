"""The reward model: its score is the reward, or is added to what the reward functions gave."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.experience.header import SampleHeader, Span, spans_of
from headrace.experience.sample import Group, Sample
from headrace.rewards.outcome import is_reward
from headrace.runtime.refs import Ref


@dataclass(frozen=True, slots=True)
class Answered:
    """A sample up to the last token that the policy chose: what an environment said after it is nothing to judge. Plain
    data, which any process can be given."""

    tokens: NDArray[np.int32] | Ref
    """[T] of the whole sample, or where its column `tokens` is."""
    length: int
    """Tokens that are judged, the first of it."""


class AnswerScorer(Protocol):
    """The model, wherever it is."""

    @property
    def max_tokens(self) -> int:
        """Budget of one forward pass; a longer sample is one of its own."""

    async def scores(self, samples: Sequence[Answered]) -> list[float]:
        """Of each sample; some may not be finite. Raises RefLost."""


@dataclass(frozen=True, slots=True)
class ModelReward:
    """What the model's scores do to the rewards of samples."""

    model: AnswerScorer
    weight: float

    def total(self, given: float | None, score: float) -> float | None:
        """The reward of a sample: what it was given, or 0, and weight x score; None if that is no reward."""
        reward = (given or 0.0) + self.weight * score
        return reward if is_reward(reward) else None

    async def scored(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with the rewards of their trainable samples added to; None where the sum is no reward."""
        samples = [(group.last_of(sample.episode), sample) for group in groups for sample in group.trainable]
        scores = await self.model.scores([answered(last) for last, _ in samples])
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


def answered(sample: Sample) -> Answered:
    return Answered(sample.tokens, _end(spans_of(sample), len(sample)))


def answered_by_ref(header: SampleHeader, ref: Ref) -> Answered:
    """The same of a sample that is behind a ref."""
    return Answered(ref, _end(header.spans, header.length))


def _end(spans: Iterable[Span], length: int) -> int:
    return max((span.end for span in spans), default=length)
