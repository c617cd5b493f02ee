"""Micro-batches go together in a call while they are short."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.roles.actors.call_size import CallSize, micros_of

PLAN = [[0, 1], [2], [3, 4], [5], [6], [7], [8], [9], [10], [11]]


@pytest.mark.parametrize(
    ("count", "seconds", "calls"),
    [
        (1, 0.001, [8, 2]),
        (8, 0.16, [8, 2]),
        (1, 0.1, [2, 2, 2, 2, 2]),
        (2, 0.2, [2, 2, 2, 2, 2]),
        (1, 0.2, [1] * 10),
        (1, 60.0, [1] * 10),
        (1, 0.0, [8, 2]),
    ],
)
def test_as_many_as_take_a_quarter_of_a_second(count: int, seconds: float, calls: list[int]) -> None:
    size = CallSize()
    size.took(count, seconds)
    assert [len(micros) for micros in size.calls(PLAN)] == calls


def test_the_first_is_alone_and_those_behind_it_follow_what_it_took() -> None:
    size = CallSize()
    calls = size.calls(PLAN)
    assert next(calls) == [[0, 1]]
    size.took(1, 0.08)
    assert next(calls) == [[2], [3, 4], [5]]


@given(sizes=st.lists(st.integers(0, 4), max_size=6))
def test_rows_are_where_they_were(sizes: list[int]) -> None:
    rows = [*range(sum(sizes))]
    found = micros_of(rows, sizes)
    assert [len(micro) for micro in found] == sizes
    assert [row for micro in found for row in micro] == rows
