"""Samples that begin alike, as a group's with their common prompt, share the computation of what they begin with.

Under causal attention a token's states depend on the tokens before it alone. So where a sample repeats the beginning
of an earlier one, its states there are the earlier one's, and their gradients add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_LEAST = 4
"""A shorter common beginning is not worth the bookkeeping."""


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """Of N packed tokens, U are computed."""

    kept: NDArray[np.int64]
    """[U]: the packed place of each token that is computed, ascending."""
    source: NDArray[np.int64]
    """[N]: which of the U stands for each packed token."""

    @staticmethod
    def none(tokens: int) -> SharedPrefixes:
        every = np.arange(tokens, dtype=np.int64)
        return SharedPrefixes(every, every)

    @staticmethod
    def of(
        tokens: NDArray[np.int64], lengths: Sequence[int], routed: NDArray[np.integer] | None = None
    ) -> SharedPrefixes:
        """`tokens` [N], made up of samples of these lengths. A sample shares with the one that leads its run. `routed`
        [N, R]: what else is prescribed for each token, and has to be the same."""
        starts = np.concatenate([[0], np.cumsum(lengths)])
        source = np.empty(len(tokens), dtype=np.int64)
        kept: list[NDArray[np.int64]] = []
        computed = 0
        leader: tuple[int, int] = (0, 0)
        for begin, end in pairwise(starts):
            shared = _common(tokens[slice(*leader)], tokens[begin:end])
            if routed is not None and shared >= _LEAST:
                first = leader[0]
                alike = (routed[first : first + shared] == routed[begin : begin + shared]).all(axis=1)
                shared = shared if alike.all() else int(alike.argmin())
            if shared < _LEAST:
                shared, leader = 0, (begin, end)
            source[begin : begin + shared] = source[leader[0] : leader[0] + shared]
            own = end - begin - shared
            source[begin + shared : end] = np.arange(computed, computed + own)
            kept.append(np.arange(begin + shared, end))
            computed += own
        return SharedPrefixes(np.concatenate(kept), source)

    def own(self, lengths: Sequence[int]) -> NDArray[np.int64]:
        """[S]: of each of the S samples, which have these lengths, how many tokens are computed for itself: its last
        ones."""
        return np.diff(np.searchsorted(self.kept, np.cumsum([0, *lengths])))


def _common(first: NDArray[np.int64], second: NDArray[np.int64]) -> int:
    """How many tokens the two begin with in common."""
    longest = min(len(first), len(second))
    differ = np.flatnonzero(first[:longest] != second[:longest])
    return int(differ[0]) if len(differ) else longest
