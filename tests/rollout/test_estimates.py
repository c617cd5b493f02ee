"""What several answers to a prompt tell: numbers by hand, and against all draws of k samples."""

from __future__ import annotations

import math
from decimal import Decimal
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.rewards.votes import END, answer_of
from headrace.rollout.estimates import Estimate, Scored, majority, mean_reward, pass_at_k, pass_of


def rewards(*values: float) -> list[Scored]:
    return [Scored(value) for value in values]


def voted(*answers: tuple[object, float]) -> list[Scored]:
    return [Scored(reward, answer) for answer, reward in answers]  # type: ignore[arg-type]


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_draws_of_k_samples_with_one_that_passes(case: tuple[int, int, int]) -> None:
    n, c, k = case
    draws = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_of(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-12)


def test_pass_at_k_of_many_samples_overflows_nothing() -> None:
    """Chen et al. 2021: 200 samples, 1 of them right: pass@100 is 1/2."""
    assert pass_of(200, 1, 100) == pytest.approx(0.5)
    assert pass_of(100_000, 1, 50_000) == pytest.approx(0.5)


def test_pass_at_k_counts_rewards_from_the_threshold_on() -> None:
    """Of two prompts 1 and 2 of 4 samples pass: pass@2 is (1 - 3/6 + 1 - 1/6) / 2 = 2/3; s = sqrt(2)/6."""
    prompts = [rewards(1.0, 0.9, 0.2, 0.0), rewards(1.0, 2.0, 0.5, 0.5)]
    found = pass_at_k(prompts, 2, pass_at=1.0)
    assert found == Estimate(pytest.approx(2 / 3), pytest.approx(math.sqrt(2) / 6 / math.sqrt(2)), 2)
    assert pass_at_k(prompts, 4, pass_at=0.5).value == 1.0


def test_samples_that_failed_count_nowhere() -> None:
    """The second prompt has one scored sample, which tells nothing of two; the third none, which tells nothing."""
    prompts = [rewards(1.0, 0.0), rewards(1.0), rewards()]
    assert pass_at_k(prompts, 2, pass_at=1.0) == Estimate(1.0, None, 1)
    assert pass_at_k(prompts, 1, pass_at=1.0) == Estimate(0.75, pytest.approx(0.25), 2)
    assert mean_reward(prompts) == Estimate(0.75, pytest.approx(0.25), 2)
    assert mean_reward([rewards()]) == Estimate(None, None, 0)


def test_prompts_count_alike_and_the_error_is_over_prompts() -> None:
    """Means 0 and 1, whatever the samples: 1/2, with s / sqrt(2) = 1/2."""
    assert mean_reward([rewards(0.0, 0.0, 0.0), rewards(1.0)]) == Estimate(0.5, pytest.approx(0.5), 2)


def test_the_majority_is_of_answers_not_of_rewards() -> None:
    """Three wrong answers, each another, do not outvote two that agree."""
    assert majority([voted(("1", 0.0), ("2", 0.0), ("3", 0.0), ("4", 1.0), ("4", 1.0))], pass_at=1.0).value == 1.0
    assert majority([voted(("1", 0.0), ("1", 0.0), ("4", 1.0))], pass_at=1.0).value == 0.0


def test_of_a_tie_the_answer_that_was_drawn_first_counts() -> None:
    assert majority([voted(("7", 1.0), ("8", 0.0), ("8", 0.0), ("7", 1.0))], pass_at=1.0).value == 1.0
    assert majority([voted(("8", 0.0), ("7", 1.0))], pass_at=1.0).value == 0.0


def test_who_gives_no_answer_has_no_vote() -> None:
    prompts = [voted((None, 0.0), (None, 0.0), ("4", 1.0)), voted((None, 0.0)), []]
    assert majority(prompts, pass_at=1.0) == Estimate(0.5, pytest.approx(0.5), 2)


@pytest.mark.parametrize(
    ("function", "response", "answer"),
    [
        ("exact", " yes \n", "yes"),
        ("exact", "  ", None),
        ("numeric", "that is 1,000.0", Decimal(1000)),
        ("numeric", "no idea", None),
        ("choice", "the answer is (C).", "C"),
        ("choice", "no idea", None),
        ("boxed_math", r"so \boxed{ \frac{1}{2} }", r"\frac{1}{2}"),
        ("boxed_math", "no idea", None),
    ],
)
def test_answers_are_those_that_the_reward_takes(function: str, response: str, answer: object) -> None:
    assert answer_of(function)(response) == answer


def test_equal_numbers_are_one_answer() -> None:
    take = answer_of("numeric")
    assert len({take("42"), take("42.0"), take("4.2e1")}) == 1


@pytest.mark.parametrize(("function", "response"), [("choice", "\n" * 10**6), ("boxed_math", r"\boxed{" * 10**5)])
def test_a_response_that_is_made_to_be_slow_holds_nothing_up(function: str, response: str) -> None:
    """Unbounded, the first of these takes minutes of the run's own process."""
    assert answer_of(function)(response) is None
    assert answer_of("choice")("x" * END + "\nB\n") == "B"


def test_a_reward_that_takes_no_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="'f1' takes no answer"):
        answer_of("f1")
