"""Curves: gaps, moving means, thinning."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from headrace.viewer.plot.points import Curve, Point, pieces, point, smoothed, thinned


def curve(*ys: float | None) -> Curve:
    return tuple(point(float(x), y) for x, y in enumerate(ys))


def test_what_is_no_number_was_not_measured() -> None:
    assert [at.y for at in curve(1, math.nan, math.inf, -math.inf, None, 1e300, True)] == [
        1.0,
        *[None] * 5,
        1.0,
    ]


def test_gaps_part_a_curve() -> None:
    parts = [[at.x for at in piece] for piece in pieces(curve(None, 1, 2, None, None, 3))]
    assert parts == [[1, 2], [5]]


def test_moving_means_go_backwards_and_leave_gaps() -> None:
    assert [at.y for at in smoothed(curve(1, 2, 6, None, 4), 3)] == [1, 1.5, 3, None, 5]
    assert smoothed(curve(1, None, 3), 1) == curve(1, None, 3)


def test_thinning_keeps_extremes_of_each_column() -> None:
    # 1000 points in 10 columns of a hundred; one peak and one dip stand alone
    ys = [math.sin(x / 50) for x in range(1000)]
    ys[333], ys[777] = 9.0, -9.0
    kept = thinned(curve(*ys), 10)
    assert len(kept) <= 90
    assert {Point(333.0, 9.0), Point(777.0, -9.0), Point(0.0, 0.0), Point(999.0, ys[999])} <= set(kept)


def test_thinning_keeps_the_ends_of_a_band_and_gaps() -> None:
    wide = [Point(float(x), 0.0, -1.0, 1.0) for x in range(500)]
    wide[200] = Point(200.0, 0.0, -5.0, 7.0)
    wide[300] = Point(300.0, None)
    kept = thinned(tuple(wide), 5)
    assert wide[200] in kept
    assert wide[300] in kept


@given(st.lists(st.one_of(st.none(), st.floats(-1e9, 1e9)), min_size=1, max_size=300), st.integers(1, 20))
def test_thinned_curves_are_parts_of_the_curve(ys: list[float | None], columns: int) -> None:
    whole = curve(*ys)
    kept = thinned(whole, columns)
    assert [at for at in whole if at in set(kept)] == list(kept)
    assert len(kept) <= max(9 * (columns + 1), len(whole) if len(whole) <= columns else 0)
    known = [at.y for at in whole if at.y is not None]
    if known:
        assert {min(known), max(known)} <= {at.y for at in kept}
