from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.data import RewardConfig
from headrace.rollout.rewards.builtin import BUILTIN_REWARDS, builtin_reward, exact, last_number, numeric, regex
from headrace.rollout.rewards.outcome import NotARewardError, as_reward
from headrace.rollout.rewards.pool import required_columns


def test_exact_leaves_out_white_space_around() -> None:
    assert exact(" Paris\n", "Paris") == 1.0
    assert exact("paris", "Paris") == 0.0
    assert exact("7", 7) == 1.0


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3+4=7,7+5=2", "2"),
        ("the answer is 1,234.50.", "1234.50"),
        ("1,2,3", "3"),
        ("7-3", "3"),
        ("7 = -3", "-3"),
        ("about 6.02e23 of them", "6.02e23"),
        ("#### 42", "42"),
        ("x2 = .5", ".5"),
        ("12345,678", "678"),
    ],
)
def test_the_last_number(text: str, number: str) -> None:
    assert last_number(text) == Decimal(number)


def test_no_number() -> None:
    assert last_number("none at all, e.g. -") is None


@given(st.integers(-(10**20), 10**20), st.text(alphabet="abc =\n", max_size=10))
def test_any_integer_is_found_behind_words(value: int, words: str) -> None:
    assert last_number(f"{words} {value}") == value
    assert last_number(f"{words} {value:,}.") == value


def test_numeric_compares_within_the_tolerance() -> None:
    assert numeric("so 7", 7, 0.0) == 1.0
    assert numeric("so 7.1", 7, 0.0) == 0.0
    assert numeric("0.333333", "0.3333333333", 1e-6) == 1.0
    assert numeric("1000001", 1000000, 1e-6) == 1.0, "relative for large numbers"
    assert numeric("1000002", 1000000, 1e-6) == 0.0
    assert numeric("100000000000000000001", 10**20, 0.0) == 0.0, "exact where floats are not"
    assert numeric("no idea", 7, 1e-6) == 0.0


def test_an_answer_without_a_number_is_an_error_not_a_zero() -> None:
    with pytest.raises(ValueError, match="'seven' has no number"):
        numeric("7", "seven", 0.0)


def test_regex_searches_the_pattern_of_the_row() -> None:
    assert regex("it is 42!", r"\b42\b") == 1.0
    assert regex("it is 421", r"\b42\b") == 0.0
    with pytest.raises(TypeError, match="no pattern"):
        regex("42", 42)


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        (r"so $\frac{2}{4}$", r"\frac{1}{2}", 1.0),
        (r"\boxed{0.5}", "1/2", 1.0),
        (r"\boxed{x^2+2x+1}", "$(x+1)^2$", 1.0),
        (r"\boxed{3}", r"\boxed{4}", 0.0),
        ("no formula", "4", 0.0),
    ],
)
def test_math_compares_formulas(response: str, answer: str, reward: float) -> None:
    pytest.importorskip("math_verify")
    score = builtin_reward("math", answer_column="solution", tolerance=0.0)
    assert score(response, {"solution": answer}) == reward


def test_a_row_without_answer_is_an_error() -> None:
    for name in ("exact", "numeric", "regex"):
        score = builtin_reward(name, answer_column="gold", tolerance=0.0)
        with pytest.raises(KeyError, match="no value in column 'gold'; set reward"):
            score("1", {"answer": "1"})


def test_which_columns_a_reward_needs() -> None:
    for name in BUILTIN_REWARDS:
        assert required_columns(RewardConfig(function=name, answer_column="gold")) == ("gold",)
    assert required_columns(RewardConfig(function="mine.py:f")) == ()


def test_what_counts_as_a_reward() -> None:
    import numpy as np

    assert as_reward(True) == 1.0
    assert as_reward(np.float32(0.5)) == 0.5
    assert type(as_reward(3)) is float


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "1", [1.0], 10**400, 1j, object()])
def test_what_does_not(value: object) -> None:
    with pytest.raises(NotARewardError):
        as_reward(value)
