from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.algorithms.kept_sets import KeptSets
from headrace.engines.protocol import FinishReason
from headrace.experience.sample import GroupKey, SampleStatus
from headrace.rollout.policy import Completion
from headrace.rollout.trajectory import Trajectory

KEY = GroupKey(0, 1, 0)


def completion(tokens: list[int], finish: FinishReason = FinishReason.STOP, version: int = 4) -> Completion:
    count = len(tokens)
    return Completion(
        np.array(tokens, np.int32),
        np.array([-0.25 * (i + 1) for i in range(count)], np.float32),
        np.full(count, version, np.int32),
        np.zeros(count, np.int32),
        finish,
    )


def test_only_what_the_policy_chose_is_trained_on() -> None:
    trajectory = Trajectory([10, 11])
    trajectory.add_completion(completion([20, 21], version=4))
    trajectory.add_observation([12])
    trajectory.add_completion(completion([22], version=5))
    sample = trajectory.to_sample(KEY, 2, 1, reward=0.5)
    assert sample.tokens.tolist() == [10, 11, 20, 21, 12, 22]
    assert sample.loss_mask.tolist() == [False, False, True, True, False, True]
    assert sample.logprobs.tolist() == [0, 0, -0.25, -0.5, 0, -0.25]
    assert sample.versions.tolist() == [-1, -1, 4, 4, -1, 5]
    assert sample.branches.tolist() == [-1, -1, 0, 0, -1, 0]
    assert (sample.group, sample.episode, sample.index, sample.reward) == (KEY, 2, 1, 0.5)
    assert sample.status is SampleStatus.COMPLETED
    assert trajectory.last_completion.tolist() == [22]


def test_what_is_past_the_context_is_cut_from_an_observation_and_from_nothing_else() -> None:
    trajectory = Trajectory([10])
    kept = KeptSets.of(np.array([20, 3, 21, 5]), np.array([2, 2]), 64)
    trajectory.add_completion(replace(completion([20, 21]), kept=kept))
    trajectory.add_observation([12, 13, 14])
    cut = trajectory.to_sample(KEY, 0, 0, max_context=4)
    assert cut.tokens.tolist() == [10, 20, 21, 12]
    assert {len(a) for a in (cut.loss_mask, cut.logprobs, cut.versions, cut.branches)} == {4}
    assert cut.kept is not None
    assert cut.kept.counts.tolist() == [0, 2, 2, 0]
    assert len(trajectory.to_sample(KEY, 0, 0, max_context=9)) == 6
    assert len(trajectory.to_sample(KEY, 0, 0, max_context=2)) == 6, "no token that the policy chose is lost"


def test_tokens_keep_their_temperature_and_what_is_greedy_is_not_trained() -> None:
    trajectory = Trajectory([10])
    trajectory.add_completion(replace(completion([20, 21]), temperature=0.5))
    trajectory.add_observation([12])
    trajectory.add_completion(replace(completion([22, 23]), temperature=0.0))
    assert [chosen for chosen, _ in trajectory.turns] == [False, True, False, True]
    assert trajectory.last_completion.tolist() == [22, 23]
    sample = trajectory.to_sample(KEY, 0, 0, max_context=5)
    assert sample.temperatures is not None
    assert sample.temperatures.tolist() == [0, 0.5, 0.5, 0, 0]
    assert sample.loss_mask.tolist() == [False, True, True, False, False]
    assert (sample.versions.tolist(), sample.logprobs.tolist()) == ([-1, 4, 4, -1, -1], [0, -0.25, -0.5, 0, 0])
    assert sample.nbytes == 5 * (17 + 4)


def test_where_all_is_greedy_nothing_is_trained_and_there_is_a_sample() -> None:
    trajectory = Trajectory([10])
    trajectory.add_completion(replace(completion([20]), temperature=0.0))
    assert trajectory.has_completion
    sample = trajectory.to_sample(KEY, 0, 0, reward=1.0)
    assert (sample.is_trainable, sample.response_tokens, sample.reward) == (True, 0, 1.0)


def test_the_status_follows_the_last_completion() -> None:
    trajectory = Trajectory([10])
    trajectory.add_completion(completion([20], FinishReason.LENGTH))
    assert trajectory.to_sample(KEY, 0, 0).status is SampleStatus.TRUNCATED
    trajectory.add_completion(completion([20]))
    assert trajectory.to_sample(KEY, 0, 0).status is SampleStatus.COMPLETED


def test_a_failure_makes_a_failed_sample() -> None:
    sample = Trajectory([10]).to_sample(KEY, 0, 0, failure="reward_nan: nan")
    assert (sample.status, sample.failure, sample.is_trainable) == (
        SampleStatus.FAILED,
        "reward_nan: nan",
        False,
    )


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 1000), max_size=5)), max_size=8))
def test_every_array_follows_the_tokens(parts: list[tuple[bool, list[int]]]) -> None:
    trajectory = Trajectory([1])
    expected = [1]
    for chosen, tokens in parts:
        if chosen:
            trajectory.add_completion(completion(tokens))
        else:
            trajectory.add_observation(tokens)
        expected += tokens
    sample = trajectory.to_sample(KEY, 0, 0)
    assert sample.tokens.tolist() == expected
    assert sample.response_tokens == sum(len(tokens) for chosen, tokens in parts if chosen)
    assert trajectory.has_completion == (sample.response_tokens > 0)
    masked = ~sample.loss_mask
    assert (sample.versions[masked] == -1).all()
    assert (sample.logprobs[masked] == 0).all()
    assert (sample.versions[sample.loss_mask] >= 0).all()
    assert [a.dtype for a in (sample.tokens, sample.loss_mask, sample.logprobs, sample.versions, sample.branches)] == [
        np.int32,
        np.bool_,
        np.float32,
        np.int32,
        np.int32,
    ]
