from __future__ import annotations

import re
import sys
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.reward import RewardConfig
from headrace.rewards.answers import fault_of
from headrace.rewards.builtin import (
    BUILTIN_REWARDS,
    builtin_reward,
    choice,
    chosen_letter,
    exact,
    f1,
    numeric,
    regex,
)
from headrace.rewards.outcome import NotARewardError, as_reward
from headrace.rewards.plain_numbers import last_number
from headrace.rewards.processes.prepared import FunctionScorer
from headrace.rewards.row_checks import required_columns


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
        ("so 7/2", "7/2"),
        ("it takes 3 1/2 hours", "7/2"),
        (r"$3\frac{1}{2}$", "7/2"),
        (r"\boxed{-\dfrac{7}{2}}", "-7/2"),
        (r"\frac12", "1/2"),
        ("6 / 4 is 3 / 2", "3/2"),
        ("on 12/25/2024", "2024"),
        ("x = \u22125", "-5"),
        ("7\u22123", "3"),
        (r"3.5 \times 10^{-3}", "7/2000"),
        ("about 3\u00d710^8 m", "300000000"),
        (r"1{,}234{,}567", "1234567"),
        (r"12\,345", "12345"),
        ("12\u202f345", "12345"),
        ("25 cm^2", "25"),
        (r"25\text{ cm}^{2}", "25"),
        ("50%", "50"),
    ],
)
def test_the_last_number(text: str, number: str) -> None:
    assert last_number(text) == Fraction(number)


@pytest.mark.parametrize("text", ["none at all, e.g. -", "7/0", "x^2", "1" * 10_000])
def test_no_number(text: str) -> None:
    assert last_number(text) is None


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


@given(st.integers(-999, 999), st.integers(1, 999), st.integers(-999, 999), st.integers(1, 999))
def test_fractions_are_compared_by_their_value(over: int, under: int, other_over: int, other_under: int) -> None:
    same = float(Fraction(over, under) == Fraction(other_over, other_under))
    sign = "-" if other_over < 0 else ""
    given = f"{sign}\\frac{{{abs(other_over)}}}{{{other_under}}}"
    assert numeric(f"so {given}", f"{over}/{under}", 0.0) == same
    assert numeric(f"so {other_over}/{other_under}.", f"{over}/{under}", 0.0) == same


@pytest.mark.parametrize(
    "answer",
    [
        r"\frac{x}{2}",
        "x/2",
        r"\frac{\sqrt{3}}{2}",
        "2^10",
        r"2^{10}",
        r"3\pi",
        r"2\sqrt{3}",
        "1.5/2",
        "3:2",
        "2024-01-02",
    ],
)
def test_an_answer_whose_number_is_a_part_of_more_is_an_error(answer: str) -> None:
    """Whatever ends in the same number would be right."""
    fault = fault_of("numeric", answer)
    assert fault is not None
    assert f"{answer!r} is more than a number" in fault


@pytest.mark.parametrize(
    "answer", ["1/2", "3+4=7 #### 7", "Answer: 42", r"45^\circ", "25 cm^2", "60 km/h", "x=-5", 0.1]
)
def test_an_answer_that_has_one_number_is_none(answer: object) -> None:
    assert fault_of("numeric", answer) is None


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


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        (r"so $\frac{1}{2}$ is \boxed{\frac{2}{4}}", 1.0),
        (r"\boxed{3}, no, \boxed{0.5}", 1.0),
        (r"\boxed{0.5}, no, \boxed{3}", 0.0),
        (r"the answer is $\frac{1}{2}$", 0.0),
        (r"\boxed{\frac{1}{2}", 0.0),
        (r"\boxed{1/2} or \boxed{", 1.0),
    ],
)
def test_boxed_math_counts_what_is_boxed_alone(response: str, reward: float) -> None:
    pytest.importorskip("math_verify")
    score = builtin_reward("boxed_math", answer_column="solution", tolerance=0.0)
    assert score(response, {"solution": r"\frac{1}{2}"}) == reward


@pytest.mark.parametrize("name", ["math", "boxed_math"])
@pytest.mark.parametrize("answer", ["???", r"$\frac{1}{$", "", "$$"])
def test_an_answer_that_is_no_formula_is_an_error_and_not_a_zero(name: str, answer: str) -> None:
    pytest.importorskip("math_verify")
    score = builtin_reward(name, answer_column="solution", tolerance=0.0)
    with pytest.raises(ValueError, match=re.escape(f"math-verify cannot read the answer {answer!r}")):
        score(r"\boxed{1}", {"solution": answer})


def test_the_last_box_whose_braces_close() -> None:
    pytest.importorskip("math_verify")
    from headrace.rewards.formulas import last_boxed

    assert last_boxed(r"\boxed{1} \boxed{a{b}c}") == "a{b}c"
    assert last_boxed(r"\boxed{\{1\}} \boxed{2") == r"\{1\}"
    assert last_boxed("none") is None


@pytest.mark.parametrize(
    ("response", "answer", "share"),
    [
        ("The cat sat!", "cat sat", 1.0),
        ("the black cat", "cat", 2 / 3),  # 1 of 2 words right, 1 of 1 found: 2 * (1/2 * 1) / (1/2 + 1)
        ("a dog", "cat", 0.0),
        ("cat cat", "cat", 2 / 3),
        ("green", ["red", "green tea", "green"], 1.0),
        ("The!", "an", 1.0),
        ("", "cat", 0.0),
    ],
)
def test_f1_of_the_words(response: str, answer: object, share: float) -> None:
    assert f1(response, answer) == pytest.approx(share)


@given(st.text(), st.text())
def test_f1_is_symmetric_and_a_share(one: str, other: str) -> None:
    assert f1(one, other) == f1(other, one)
    assert 0.0 <= f1(one, other) <= 1.0
    assert f1(one, one) == 1.0


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("(c)", None),
        ("It is not A. The answer is (C).", "C"),
        ("Answer: **D**", "D"),
        (r"A or B? \boxed{\text{B}}", "B"),
        ("Both (A) and (B)... so (A)", "A"),
        ("The answer is A because B is wrong", "A"),
        ("The answer is Apple", None),
        ("I think so.\n\nC.", "C"),
        ("A cat is here", None),
        ("answer is A\nno: the answer is B", "B"),
        ("Answer: I think it is (C)", "C"),
        ("My answer: A closer look…\n\nC", "C"),
        ("The answer is A closer to it", "A"),
        ("The answer is B because (C) is wrong", "B"),
        ("**Answer**: C, as seen", "C"),
        ("The answer is option C, as seen", "C"),
        (r"the answer is \(C\), as seen", "C"),
        ("the answer: A’s", None),
    ],
)
def test_the_letter_that_is_chosen(text: str, letter: str | None) -> None:
    assert chosen_letter(text) == letter


def test_choice_compares_letters() -> None:
    assert choice("The answer is (C).", "(c)") == 1.0
    assert choice("The answer is (C).", "B") == 0.0
    assert choice("No idea.", "B") == 0.0
    with pytest.raises(ValueError, match="'Paris' is no letter"):
        choice("A", "Paris")


SCHEMA = {"type": "object", "required": ["age"], "properties": {"age": {"type": "integer", "minimum": 0}}}


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ('{"age": 3}', 1.0),
        ('Here:\n```json\n{"age": 3}\n```', 1.0),
        ('{"age": -3}', 0.0),
        ('{"name": "x"}', 0.0),
        ('{"age": 3', 0.0),
        ("[" * 100_000, 0.0),
        ('{"age": NaN}', 0.0),
    ],
)
def test_json_is_held_against_its_schema(response: str, reward: float) -> None:
    pytest.importorskip("jsonschema")
    score = builtin_reward("json_schema", answer_column="schema", tolerance=0.0)
    assert score(response, {"schema": SCHEMA}) == reward
    everywhere = builtin_reward("json_schema", answer_column="schema", tolerance=0.0, answer=SCHEMA)
    assert everywhere(response, {}) == reward


def test_a_schema_that_is_none_or_points_elsewhere_is_an_error() -> None:
    pytest.importorskip("jsonschema")
    score = builtin_reward("json_schema", answer_column="schema", tolerance=0.0)
    for schema in ({"type": "integre"}, [1], {"$ref": "http://127.0.0.1:9/schema.json"}):
        with pytest.raises(Exception, match=r"integre|no JSON schema|schema\.json"):
            score("1", {"schema": schema})


def test_a_reward_whose_extra_is_absent_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module, extra in (
        ("json_schema", "jsonschema.validators", "schema"),
        ("boxed_math", "math_verify", "math"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        for loaded in ("json_schema", "formulas"):
            monkeypatch.delitem(sys.modules, f"headrace.rewards.{loaded}", raising=False)
            monkeypatch.delattr(f"headrace.rewards.{loaded}", raising=False)
        term = {"function": name, "answer_column": "answer", "answer": None, "tolerance": 0.0}
        with pytest.raises(ImportError, match=rf"pip install 'headrace\[{extra}\]'"):
            FunctionScorer(term)


def test_one_pattern_can_serve_all_rows() -> None:
    score = builtin_reward("regex", answer_column="absent", tolerance=0.0, answer="^<think>.*</think>")
    assert score("<think>so</think> 7", {}) == 1.0
    assert score("7", {}) == 0.0


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
