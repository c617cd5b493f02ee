"""The quickstart's task: the last digit of a sum of digits.

The prompt `3+5+7=` has the answer 5. Worked out, term by term, the response is `58;75;5`: each step is the digit
added and the running sum's last digit, and after the steps comes the answer. Blurted out, it is `5`. Adding modulo 10
once is easy for a tiny model, and seven times at once is not: working pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

CHARACTERS = "0123456789+=;"
LENGTH_SHARES = {2: 0.10, 3: 0.22, 4: 0.22, 5: 0.17, 6: 0.13, 7: 0.09, 8: 0.07}
"""Share of prompts by number of terms: many short ones and a tail, as real prompts have it."""
MAX_PROMPT = 2 * max(LENGTH_SHARES)
MAX_RESPONSE = 3 * (max(LENGTH_SHARES) - 1) + 2
"""Tokens of the longest worked response, the end-of-sequence token included."""


@dataclass(frozen=True, slots=True)
class Problem:
    terms: tuple[int, ...]
    """Digits, two or more."""

    @property
    def prompt(self) -> str:
        return "+".join(map(str, self.terms)) + "="

    @property
    def answer(self) -> str:
        return str(sum(self.terms) % 10)

    @property
    def working(self) -> str:
        """The response that works the answer out."""
        sums = accumulate(self.terms, lambda total, term: (total + term) % 10)
        next(sums)
        return "".join(f"{term}{total};" for term, total in zip(self.terms[1:], sums, strict=True)) + self.answer


def draw_problem(rng: np.random.Generator) -> Problem:
    lengths = list(LENGTH_SHARES)
    length = lengths[int(np.searchsorted(_cumulative(list(LENGTH_SHARES.values())), rng.random(), side="right"))]
    return Problem(tuple(rng.integers(0, 10, length).tolist()))


def _cumulative(shares: Sequence[float]) -> list[float]:
    """Without the last one, which rounding may leave below 1."""
    return list(accumulate(shares))[:-1]
