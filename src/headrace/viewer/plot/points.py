"""Curves as points, and what is done to them: moving means, and fewer points where a picture shows no more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

LARGEST = 1e150
"""Values beyond it are taken for not measured: sums and spans of smaller ones are finite."""


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float | None
    """None where nothing was measured: a gap in the curve."""
    low: float | None = None
    """Of the seeds at `x`, where the curve is of several."""
    high: float | None = None

    @property
    def values(self) -> tuple[float, ...]:
        """All that a picture shows at `x`."""
        return tuple(value for value in (self.y, self.low, self.high) if value is not None)


Curve = tuple[Point, ...]
"""By rising x."""


def point(x: float, y: float | None) -> Point:
    """NaN and infinity count as not measured."""
    return Point(x, float(y) if y is not None and abs(y) <= LARGEST else None)


def is_empty(curve: Curve) -> bool:
    """Whether nothing was measured at all."""
    return all(point.y is None for point in curve)


def smoothed(curve: Curve, window: int) -> Curve:
    """Of each measured point the mean of it and those among the `window - 1` points before it that were measured."""
    means = []
    for place, at in enumerate(curve):
        known = [p.y for p in curve[max(place - window + 1, 0) : place + 1] if p.y is not None]
        means.append(Point(at.x, None if at.y is None else math.fsum(known) / len(known)))
    return tuple(means)


def pieces(curve: Curve) -> Iterator[Sequence[Point]]:
    """The parts of the curve between its gaps."""
    piece: list[Point] = []
    for at in (*curve, Point(0.0, None)):
        if at.y is not None:
            piece.append(at)
        elif piece:
            yield piece
            piece = []


def thinned(curve: Curve, columns: int) -> Curve:
    """At most nine points of each of so many columns of equal width: the first, the last, the extremes and a gap.

    A picture no wider than that looks the same (Jugel et al. 2014, M4: A Visualization-Oriented Time Series Data
    Aggregation).
    """
    if len(curve) <= columns:
        return curve
    start, width = curve[0].x, (curve[-1].x - curve[0].x) / columns or 1.0
    kept: set[int] = set()
    column: list[int] = []
    now = 0
    for place, at in enumerate(curve):
        here = int((at.x - start) / width)
        if here != now:
            kept.update(_kept(curve, column))
            column, now = [], here
        column.append(place)
    kept.update(_kept(curve, column))
    return tuple(curve[place] for place in sorted(kept))


def _kept(curve: Curve, places: Sequence[int]) -> Iterable[int]:
    known = [place for place in places if curve[place].y is not None]
    yield from (*places[:1], *places[-1:], *known[:1], *known[-1:])
    yield from [place for place in places if curve[place].y is None][:1]
    if known:
        yield min(known, key=lambda place: min(curve[place].values))
        yield max(known, key=lambda place: max(curve[place].values))
        yield min(known, key=lambda place: curve[place].y or 0.0)
        yield max(known, key=lambda place: curve[place].y or 0.0)
