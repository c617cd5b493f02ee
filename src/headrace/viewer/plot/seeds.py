"""Runs that are seeds of one config, as one curve: their mean, and the band from the lowest to the highest."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from headrace.config.reading.load import decisive
from headrace.config.reading.resume import LENGTHS
from headrace.observe.offline.run_record import OfflineRun
from headrace.observe.run_record import RunRecord
from headrace.viewer.plot.points import Curve, Point

_LENGTHS = tuple(key.removeprefix("trainer.") for key in LENGTHS)


def together(runs: Sequence[RunRecord | OfflineRun]) -> list[list[int]]:
    """Places of runs whose configs differ, in what decides the result, in their seed and length at most; in the order
    given."""
    found: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        values = decisive(run.config.model_dump(mode="json", by_alias=True))
        values.pop("seed")
        if isinstance(run, RunRecord) and run.config.trainer.lr_schedule.kind == "constant":
            # One that was gone on with is the same run for longer; under a schedule its rates would be others.
            values["trainer"] = {key: each for key, each in values["trainer"].items() if key not in _LENGTHS}
        found.setdefault(json.dumps(values, sort_keys=True), []).append(place)
    return list(found.values())


def band(seeds: Sequence[Curve], *, between: bool) -> Curve:
    """Mean, lowest and highest where all seeds have a value.

    `between`: seeds share no x (they are seconds), so that each is taken as straight between its points.
    """
    known = [[at for at in curve if at.y is not None] for curve in seeds]
    if len(known) < 2 or not all(known):
        return tuple(at for curve in seeds for at in curve) if len(seeds) == 1 else ()
    if not between:
        values = [{at.x: at.y for at in curve} for curve in known]
        shared = sorted(set[float].intersection(*(set(by_x) for by_x in values)))
        return tuple(_spread(x, (by_x[x] for by_x in values)) for x in shared)
    first, last = max(curve[0].x for curve in known), min(curve[-1].x for curve in known)
    xs = sorted({at.x for curve in known for at in curve if first <= at.x <= last})
    return tuple(_spread(x, (_at(curve, x) for curve in known)) for x in xs)


def _spread(x: float, values: Iterable[float | None]) -> Point:
    ys = [y for y in values if y is not None]
    low, high = min(ys), max(ys)
    # Rounding must not put the mean of equal values beside them.
    return Point(x, min(max(math.fsum(ys) / len(ys), low), high), low, high)


def _at(curve: Sequence[Point], x: float) -> float | None:
    """The value at `x`, which is within the curve, whose values are all known."""
    place = bisect_left(curve, x, key=lambda at: at.x)
    right = curve[place]
    if right.x == x or place == 0:
        return right.y
    left = curve[place - 1]
    share = (x - left.x) / (right.x - left.x)
    return (left.y or 0.0) * (1 - share) + (right.y or 0.0) * share
