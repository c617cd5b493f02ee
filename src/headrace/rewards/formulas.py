"""Rewards that compare formulas, by math-verify (the extra `math`)."""

from __future__ import annotations

from typing import Any

from math_verify import parse, verify


def math(response: str, answer: object) -> float:
    """1 if math-verify finds the last formula of the response equal to the answer (LaTeX or a plain expression)."""
    return float(verify(_wanted(answer), _parse(response), timeout_seconds=None))


def boxed_math(response: str, answer: object) -> float:
    r"""As `math`, but only what stands in the last `\boxed{}` of the response counts; without one, 0."""
    wanted = _wanted(answer)
    given = last_boxed(response)
    return 0.0 if given is None else float(verify(wanted, _parse(f"${given}$"), timeout_seconds=None))


def last_boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{}` whose braces close; None if there is none."""
    start = len(text)
    while (start := text.rfind("\\boxed{", 0, start)) >= 0:
        begin = start + len("\\boxed{")
        depth, place = 1, begin
        while place < len(text) and depth:
            if text[place] == "\\":
                place += 1  # an escaped brace is not a brace
            elif text[place] in "{}":
                depth += 1 if text[place] == "{" else -1
            place += 1
        if depth == 0:
            return text[begin : place - 1]
    return None


def _wanted(answer: object) -> Any:
    text = str(answer)
    marked = any(mark in text for mark in ("$", "\\boxed", "\\(", "\\["))
    wanted = _parse(text if marked else f"${text}$")
    if all(isinstance(one, str) for one in wanted):  # no formula, but perhaps the text itself
        raise ValueError(f"math-verify cannot read the answer {text!r}")
    return wanted


def _parse(text: str) -> Any:
    # Its own time limits are off: they would turn an overrun into a wrong answer. Ours kills the process.
    return parse(text, parsing_timeout=None)
