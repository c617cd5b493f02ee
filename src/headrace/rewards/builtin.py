"""The built-in rewards: pure functions `(response, row) -> float`, 1 for right, 0 for wrong, between for a share.

A fault of the data (no answer, an answer without a number, a pattern that does not compile) raises: it is an
error with a reason, not a wrong response.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from headrace.rewards.plain_numbers import last_number, number_of

Reward = Callable[[str, dict[str, Any]], float]
Comparison = Callable[[str, Any], float]
"""(response, what it is compared with) to a reward."""

BUILTIN_REWARDS = ("exact", "numeric", "regex", "math", "boxed_math", "f1", "choice", "json_schema")

EXTRAS = {"math": "math", "boxed_math": "math", "json_schema": "schema"}
"""The optional dependencies that a reward needs."""


_STYLED = r"[*_\s(\[{$\\]*(?:(?:text|mathrm|textbf|mathbf)\{\(?)?"
_LETTER = r"([A-Z])(?![A-Za-z0-9'\u2019])"
_NO_WORD = r"(?!(?<=[AI]) (?!(?:because|since|as|and|or|but|due|given|is)\b)[a-z])"
"""A and I with a word behind are words themselves: "I think", "A closer look"."""
_ANSWER = r"(?i:\banswer\b[*_]{0,3}(?:\s+is\b)?[*_]{0,3}\s?:?(?:[*_ ]{0,4}\b(?:option|choice)\b)?)" + _STYLED
_CHOICES = (
    re.compile(r"\\boxed\{\s*(?:\\(?:text|mathrm|textbf)\{)?\s*\(?([A-Z])\)?\s*\}"),
    re.compile(_ANSWER + _LETTER + _NO_WORD),
    re.compile(r"(?m)^\W*([A-Z])\W*$"),
    re.compile(r"\(([A-Z])\)"),
    re.compile(_ANSWER + _LETTER),
)
"""Where a choice is named, the plainest first; of one kind the last counts."""


def builtin_reward(name: str, *, answer_column: str, tolerance: float, answer: Any = None) -> Reward:
    """The reward called `name`, which compares with `answer` or, if that is None, with the row's `answer_column`.

    Raises ImportError if it needs an extra that is not installed.
    """
    compare = comparison(name, tolerance)
    if answer is not None:
        return lambda response, row: compare(response, answer)
    return lambda response, row: compare(response, answer_of(row, answer_column))


def answer_of(row: dict[str, Any], column: str) -> Any:
    """Raises KeyError if there is none."""
    if row.get(column) is None:
        raise KeyError(f"the row has no value in column {column!r}; set reward.answer_column")
    return row[column]


def comparison(name: str, tolerance: float) -> Comparison:
    """What the reward called `name` does. Raises ImportError if it needs an extra that is not installed."""
    match name:
        case "exact":
            return exact
        case "numeric":
            return lambda response, answer: numeric(response, answer, tolerance)
        case "f1":
            return f1
        case "choice":
            return choice
        case "regex":
            return regex
        case "math" | "boxed_math":
            from headrace.rewards import formulas

            return formulas.math if name == "math" else formulas.boxed_math
        case "json_schema":
            from headrace.rewards import json_schema as schema

            return schema.json_schema
        case _:
            raise ValueError(f"no built-in reward {name!r}; there are {', '.join(BUILTIN_REWARDS)}")


def exact(response: str, answer: object) -> float:
    """1 if the response is the answer, white space around both left out."""
    return float(response.strip() == str(answer).strip())


def numeric(response: str, answer: object, tolerance: float) -> float:
    r"""1 if the last number in the response is the answer, within an absolute or relative `tolerance`.

    Of an answer in words the last number counts too (`... #### 42`). Thousands may be set off by commas. A fraction of
    whole numbers is a number (`1/2`, `3 1/2`, `\frac{1}{2}`). Raises ValueError if the answer has no number, or one
    that is a part of more (`x/2`, `2^{10}`, `3\pi`).
    """
    from fractions import Fraction

    wanted, given = number_of(str(answer)), last_number(response)
    if given is None:
        return 0.0
    difference, allowed = abs(given - wanted), Fraction(repr(tolerance))
    return float(difference <= allowed or difference <= allowed * max(abs(given), abs(wanted)))


def f1(response: str, answer: object) -> float:
    """The F1 of the words that response and answer share; of several answers (a list) the best.

    As SQuAD counts (Rajpurkar et al. 2016, section 6.1): without case, punctuation and articles. Where a side has no
    words, 1 if neither has any.
    """
    wanted = answer if isinstance(answer, list) else [answer]
    if not wanted:
        raise ValueError("the answer is an empty list")
    return max(_shared(_words(response), _words(str(one))) for one in wanted)


def _words(text: str) -> Counter[str]:
    bare = re.sub(r"[!-/:-@\[-`{-~]", "", text.lower())
    return Counter(word for word in bare.split() if word not in ("a", "an", "the"))


def _shared(given: Counter[str], wanted: Counter[str]) -> float:
    if not given or not wanted:
        return float(given == wanted)
    return 2 * (given & wanted).total() / (given.total() + wanted.total())


def choice(response: str, answer: object) -> float:
    r"""1 if the response names the letter of the answer: `\boxed{C}`, `the answer is (C)`, a line that is C, or (C)."""
    letter = re.fullmatch(r"\W*([A-Za-z])\W*", answer) if isinstance(answer, str) else None
    if letter is None:
        raise ValueError(f"the answer {answer!r} is no letter")
    return float(chosen_letter(response) == letter[1].upper())


def chosen_letter(text: str) -> str | None:
    for pattern in _CHOICES:
        found: list[str] = pattern.findall(text)
        if found:
            return found[-1]
    return None


def regex(response: str, pattern: object) -> float:
    """1 if `pattern`, a regular expression of Python's `re`, is found anywhere in the response."""
    if not isinstance(pattern, str):
        raise TypeError(f"the answer {pattern!r} is no pattern; give a regular expression as text")
    return float(re.search(pattern, response) is not None)
