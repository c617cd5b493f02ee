"""Which tokens of a packed row are computed, and which stand for others."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.models.prefixes import SharedPrefixes

samples = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=6)


def test_by_hand() -> None:
    """Two samples with a common beginning of five tokens, then one that has only three in common."""
    tokens = np.array([1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 7, 8, 1, 2, 3, 9])
    shared = SharedPrefixes.of(tokens, [6, 7, 4])
    assert shared.kept.tolist() == [0, 1, 2, 3, 4, 5, 11, 12, 13, 14, 15, 16]
    assert shared.source.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    assert shared.own([6, 7, 4]).tolist() == [6, 2, 4]


@settings(max_examples=300, deadline=None)
@example([[0] * 4, [0] * 4, [0] * 8])
@given(samples)
def test_what_stands_for_a_token_has_the_same_tokens_before_it(rows: list[list[int]]) -> None:
    tokens = np.array([token for row in rows for token in row])
    starts = np.cumsum([0, *map(len, rows)])
    shared = SharedPrefixes.of(tokens, [len(row) for row in rows])

    def past(place: int) -> list[int]:
        begin = max(start for start in starts if start <= place)
        return tokens[begin : place + 1].tolist()

    for place, computed in enumerate(shared.source):
        assert past(place) == past(int(shared.kept[computed]))
    assert sorted(shared.source[shared.kept]) == list(range(len(shared.kept)))
    assert sum(shared.own([len(row) for row in rows])) == len(shared.kept)


def test_none_shares_nothing() -> None:
    shared = SharedPrefixes.none(3)
    assert shared.kept.tolist() == shared.source.tolist() == [0, 1, 2]
