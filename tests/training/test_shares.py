"""Rows shared out to the ranks of a trainer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.training.shares import Loads, shares


def test_ranks_get_about_as_many_tokens_each() -> None:
    """Of 24 tokens 12 each: 5 and 7 in one micro-batch, 8 and 4 in another; and none more than 6 at once."""
    assert shares([5, 7, 8, 4], 2, 100) == [[[0, 1]], [[2, 3]]]
    assert shares([5, 1, 3, 3, 6, 6], 2, 6) == [[[0, 1], [4]], [[2, 3], [5]]]
    assert shares([9], 3, 4) == [[[0]], [], []]
    assert shares([], 2, 4) == [[], []]


def test_what_comes_in_several_calls_is_even_over_all_of_them() -> None:
    """One sample a call goes to one after another; what is given for something else does not count."""
    loads, found = Loads(4), []
    for length in (64, 60, 30, 30, 10, 20):
        parts = shares([length], 4, 8192, loads.had("accumulate"))
        loads.add("accumulate", parts, [length])
        found.append(next(rank for rank, part in enumerate(parts) if part))
    assert found == [0, 1, 2, 3, 2, 3]
    assert loads.had("accumulate") == [64, 60, 40, 50]
    assert loads.had("values") == [0, 0, 0, 0]
    loads.forget()
    assert loads.had("accumulate") == [0, 0, 0, 0]


@given(
    calls=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=6), max_size=8),
    ranks=st.integers(1, 6),
    max_tokens=st.integers(1, 100),
)
def test_no_rank_is_ahead_of_another_by_more_than_a_micro_batch(
    calls: list[list[int]], ranks: int, max_tokens: int
) -> None:
    loads, largest = Loads(ranks), 0
    for lengths in calls:
        parts = shares(lengths, ranks, max_tokens, loads.had("accumulate"))
        loads.add("accumulate", parts, lengths)
        sizes = [sum(lengths[place] for place in places) for part in parts for places in part]
        largest = max([largest, *sizes])
    assert max(loads.had("accumulate")) - min(loads.had("accumulate")) <= largest
    assert sum(loads.had("accumulate")) == sum(map(sum, calls))


@given(lengths=st.lists(st.integers(1, 40), max_size=24), ranks=st.integers(1, 6), max_tokens=st.integers(1, 100))
def test_each_row_is_one_rank_s_and_no_micro_batch_too_long(lengths: list[int], ranks: int, max_tokens: int) -> None:
    found = shares(lengths, ranks, max_tokens)
    assert len(found) == ranks
    assert sorted(place for part in found for places in part for place in places) == [*range(len(lengths))]
    for part in found:
        for places in part:
            assert places == [*range(places[0], places[-1] + 1)], "neighbours"
            assert len(places) == 1 or sum(lengths[place] for place in places) <= max_tokens
    loads = [sum(lengths[place] for places in part for place in places) for part in found]
    share = -(-sum(lengths) // ranks)
    assert max(loads, default=0) <= share + max(share, *lengths, 0) if lengths else True
