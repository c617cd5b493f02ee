"""Whether an answer is one that a built-in reward can compare with, told before a run begins."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from headrace.rewards.builtin import Comparison, comparison
from headrace.rewards.code import read_tests

_LOOKED_AT = ("numeric", "choice", "regex", "json_schema", "f1", "code")
"""Formulas are not: to read one takes milliseconds, and can take for ever."""


def fault_of(function: str, answer: object) -> str | None:
    """Why the built-in reward `function` could give no sample a reward for `answer`, if so."""
    if function not in _LOOKED_AT:
        return None
    try:
        _reader(function)(answer)
    except ImportError:  # an extra that is not installed: whoever loads the reward says so
        return None
    except Exception as error:
        return str(error) or type(error).__name__
    return None


@cache
def _reader(function: str) -> Callable[[object], object]:
    if function == "code":
        return read_tests
    compare: Comparison = comparison(function, tolerance=0.0)
    return lambda answer: compare("", answer)
