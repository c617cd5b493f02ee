"""Rows of a decode step, split where their lengths differ much: attention then looks only as far as each part needs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_PART_COST = 512
"""What one more part costs, in keys that rows would otherwise look at in vain (measured on a CPU)."""


@dataclass(frozen=True, slots=True)
class RowRange:
    begin: int
    end: int
    length: int
    """Keys of the longest row."""


def split_rows(positions: torch.Tensor) -> list[RowRange]:
    """Consecutive ranges that cover all rows, from int64 positions [n] on the CPU.

    Best where rows are sorted by length; any order gives ranges that are long enough for their rows.
    """
    lengths = (positions + 1).tolist()
    ranges: list[RowRange] = []
    begin, longest = 0, lengths[0]
    # From the back: how long the longest row is from each one on.
    after = lengths.copy()
    for row in range(len(lengths) - 2, -1, -1):
        after[row] = max(after[row], after[row + 1])
    for row in range(1, len(lengths)):
        longest = max(longest, lengths[row - 1])
        if (longest - after[row]) * (len(lengths) - row) > _PART_COST:
            ranges.append(RowRange(begin, row, longest))
            begin, longest = row, lengths[row]
    longest = max(longest, lengths[-1])
    return [*ranges, RowRange(begin, len(lengths), longest)]
