"""The reward model's arithmetic: a score a sample, weighted, and added to what the rules gave."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus
from headrace.rewards.model_reward import Answered, ModelReward

KEY = GroupKey(0, 0, 0)


def sample(
    tokens: list[int], episode: int = 0, reward: float | None = None, status: SampleStatus = SampleStatus.COMPLETED
) -> Sample:
    length = len(tokens)
    return Sample(
        group=KEY,
        episode=episode,
        index=0,
        tokens=np.array(tokens, np.int32),
        loss_mask=np.arange(length) > 0,
        logprobs=np.zeros(length, np.float32),
        versions=np.zeros(length, np.int32),
        branches=np.zeros(length, np.int32),
        status=status,
        reward=reward,
    )


class Sums:
    """Scores a sample by the sum of its tokens, and keeps the sizes of what it was given."""

    max_tokens = 100

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def scores(self, samples: Sequence[Answered]) -> list[float]:
        self.sizes += [each.length for each in samples]
        assert all(isinstance(each.tokens, np.ndarray) for each in samples)
        sums = [float(each.tokens[: each.length].sum()) for each in samples]  # type: ignore[index]
        return [math.nan if each == 13 else each for each in sums]


def scored(*samples: Sample, weight: float = 1.0) -> tuple[list[float | None], list[int]]:
    sums = Sums()
    (group,) = asyncio.run(ModelReward(sums, weight).scored([Group(KEY, "p", 0, 0, samples)]))
    return [one.reward for one in group.samples], sums.sizes


def test_the_score_is_weighted_and_added() -> None:
    rewards, _ = scored(sample([1, 2]), sample([4], 1, reward=10.0), weight=0.5)
    assert rewards == [1.5, 12.0]


def test_the_samples_of_an_episode_share_the_score_of_its_last() -> None:
    rewards, _ = scored(sample([1, 1], 0, reward=0.5), sample([2, 2, 2], 0), sample([9], 1))
    assert rewards == [6.5, 6.0, 9.0]


def test_what_stands_after_the_last_answer_is_not_judged() -> None:
    observed = replace(sample([1, 2, 4, 8]), loss_mask=np.array([False, True, True, False]))
    assert scored(observed) == ([7.0], [3])


def test_what_failed_is_not_scored_and_a_score_that_is_no_number_is_no_reward() -> None:
    rewards, sizes = scored(sample([1, 2], 0, status=SampleStatus.FAILED), sample([13], 1, reward=1.0), sample([5], 2))
    assert rewards == [None, None, 5.0]
    assert sum(sizes) == 2


def test_a_total_that_is_no_reward_is_none() -> None:
    model = ModelReward(Sums(), 0.5)
    assert model.total(None, 3.0) == 1.5
    assert model.total(2.0, -3.0) == 0.5
    assert model.total(None, math.inf) is None
    assert model.total(1.0, math.nan) is None
    assert model.total(1.0, 1e20) is None, "its square is beyond single precision"
