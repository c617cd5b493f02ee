"""The built-in rewards that are pure functions `(response, row) -> float`, found by name.

A fault of the data (no answer, an answer without a number, a pattern that does not compile) raises: it is an
error with a reason, not a wrong response.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.rollout.rewards import answers

Reward = Callable[[str, dict[str, Any]], float]
Comparison = Callable[[str, Any], float]
"""(response, what it is compared with) to a reward."""

BUILTIN_REWARDS = ("exact", "numeric", "f1", "choice", "regex", "math", "boxed_math", "json_schema")

EXTRAS = {"math": "math", "boxed_math": "math", "json_schema": "schema"}
"""The optional dependencies that a reward needs."""


def builtin_reward(name: str, *, answer_column: str, tolerance: float, answer: Any = None) -> Reward:
    """The reward called `name`, which compares with `answer` or, if that is None, with the row's `answer_column`.

    Raises ImportError if it needs an extra that is not installed.
    """
    compare = _comparison(name, tolerance)
    if answer is not None:
        return lambda response, row: compare(response, answer)
    return lambda response, row: compare(response, answer_of(row, answer_column))


def answer_of(row: dict[str, Any], column: str) -> Any:
    """Raises KeyError if there is none."""
    if row.get(column) is None:
        raise KeyError(f"the row has no value in column {column!r}; set reward.answer_column")
    return row[column]


def _comparison(name: str, tolerance: float) -> Comparison:
    match name:
        case "exact":
            return answers.exact
        case "numeric":
            return lambda response, answer: answers.numeric(response, answer, tolerance)
        case "f1":
            return answers.f1
        case "choice":
            return answers.choice
        case "regex":
            return answers.regex
        case "math" | "boxed_math":
            from headrace.rollout.rewards import formulas

            return formulas.math if name == "math" else formulas.boxed_math
        case "json_schema":
            from headrace.rollout.rewards import schema

            return schema.json_schema
        case _:
            raise ValueError(f"no built-in reward {name!r}; there are {', '.join(BUILTIN_REWARDS)}")
