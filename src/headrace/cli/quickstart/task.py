"""The quickstart's task: the last digit of a sum of digits.

The prompt `3+5+7=` has the answer 5. Worked out, term by term, the response is `58;75;5`: each step is the digit added
and the last digit of the sum so far, and after the steps comes the answer. A guess is `~5`. Adding modulo 10 once is
easy for a tiny model, and seven times at once is not: working pays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

CHARACTERS = "0123456789+=;~"


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
    def guess(self) -> str:
        """The response that blurts the answer out."""
        return f"~{self.answer}"

    @property
    def working(self) -> str:
        """The response that works the answer out."""
        sums = accumulate(self.terms, lambda total, term: (total + term) % 10)
        next(sums)
        return "".join(f"{term}{total};" for term, total in zip(self.terms[1:], sums, strict=True)) + self.answer


def draw_problem(rng: np.random.Generator, shares: Mapping[int, float]) -> Problem:
    """One at random; `shares`: probability of each number of terms."""
    edges = np.cumsum(list(shares.values()))
    place = int(np.searchsorted(edges[:-1], rng.random(), side="right"))
    return Problem(tuple(rng.integers(0, 10, list(shares)[place]).tolist()))
