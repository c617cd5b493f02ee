"""Rows of a decode step, by how far attention looks."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.engines.embedded.ranges import RowRange, split_rows


@given(st.lists(st.integers(0, 600), min_size=1, max_size=40), st.booleans())
def test_ranges_cover_every_row_once_and_reach_its_keys(positions: list[int], ordered: bool) -> None:
    if ordered:
        positions.sort(reverse=True)
    ranges = split_rows(torch.tensor(positions))
    assert [row for part in ranges for row in range(part.begin, part.end)] == list(range(len(positions)))
    assert all(part.length == max(positions[part.begin : part.end]) + 1 for part in ranges)


def test_a_part_of_its_own_is_for_rows_that_are_much_shorter() -> None:
    # Three rows of 10 keys beside one of 500 would look at 3 x 490 keys in vain.
    assert split_rows(torch.tensor([499, 9, 9, 9])) == [RowRange(0, 1, 500), RowRange(1, 4, 10)]
    # Against one of 100 it is 3 x 90: less than a part costs.
    assert split_rows(torch.tensor([99, 9, 9, 9])) == [RowRange(0, 4, 100)]
