"""The built-in rewards: pure functions `(response, row) -> float`, 1 for right and 0 for wrong.

A fault of the data (no answer, an answer without a number, a pattern that does not compile) raises: it is an
error with a reason, not a wrong response.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

Reward = Callable[[str, dict[str, Any]], float]

BUILTIN_REWARDS = ("exact", "numeric", "regex", "math")

# A sign belongs to the number unless something is subtracted: the 3 of "7-3" is positive.
_NUMBER = re.compile(
    r"(?:(?<![\w)\]])[-+])?"
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
    r"(?:[eE][-+]?[0-9]{1,3}(?![0-9]))?"
)


def builtin_reward(name: str, *, answer_column: str, tolerance: float) -> Reward:
    """The reward called `name`. Raises ImportError if it needs an extra that is not installed."""
    match name:
        case "exact":
            return lambda response, row: exact(response, _answer(row, answer_column))
        case "numeric":
            return lambda response, row: numeric(response, _answer(row, answer_column), tolerance)
        case "regex":
            return lambda response, row: regex(response, _answer(row, answer_column))
        case "math":
            return _math(answer_column)
        case _:
            raise ValueError(f"no built-in reward {name!r}; there are {', '.join(BUILTIN_REWARDS)}")


def exact(response: str, answer: object) -> float:
    """1 if the response is the answer, white space around both left out."""
    return float(response.strip() == str(answer).strip())


def numeric(response: str, answer: object, tolerance: float) -> float:
    """1 if the last number in the response is the answer, within an absolute or relative `tolerance`.

    Of an answer in words the last number counts too (`... #### 42`). Thousands may be set off by commas.
    """
    wanted = last_number(str(answer))
    if wanted is None:
        raise ValueError(f"the answer {answer!r} has no number")
    given = last_number(response)
    if given is None:
        return 0.0
    difference, allowed = abs(given - wanted), Decimal(repr(tolerance))
    return float(difference <= allowed or difference <= allowed * max(abs(given), abs(wanted)))


def last_number(text: str) -> Decimal | None:
    numbers = _NUMBER.findall(text)
    return Decimal(numbers[-1].replace(",", "")) if numbers else None


def regex(response: str, pattern: object) -> float:
    """1 if `pattern`, a regular expression of Python's `re`, is found anywhere in the response."""
    if not isinstance(pattern, str):
        raise TypeError(f"the answer {pattern!r} is no pattern; give a regular expression as text")
    return float(re.search(pattern, response) is not None)


def _math(answer_column: str) -> Reward:
    """1 if math-verify finds the last formula of the response equal to the answer (LaTeX or a plain expression)."""
    from math_verify import parse, verify

    def reward(response: str, row: dict[str, Any]) -> float:
        answer = str(_answer(row, answer_column))
        marked = any(mark in answer for mark in ("$", "\\boxed", "\\(", "\\["))
        # Its own time limits are off: they would turn an overrun into a wrong answer. Ours kills the process.
        wanted = parse(answer if marked else f"${answer}$", parsing_timeout=None)
        if not wanted:
            raise ValueError(f"math-verify cannot read the answer {answer!r}")
        return float(verify(wanted, parse(response, parsing_timeout=None), timeout_seconds=None))

    return reward


def _answer(row: dict[str, Any], column: str) -> object:
    if row.get(column) is None:
        raise KeyError(f"the row has no value in column {column!r}; set reward.answer_column")
    return row[column]
