"""When a group may start again, foretold from what keeps it from starting.

What shuts the gate (`Schedule.shut_by`) says with what it opens. Groups are counted against versions: the next version
opens it, a usual batch after the last one. Or against those that are live: while the batch has places, one that ends
opens it; once it is sealed nobody enters it any more, and the next version does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from statistics import median
from typing import Literal

from headrace.experience.schedule import Bound

_LATELY = 8
"""So many of the last ones tell what is usual."""

Awaited = Literal["version", "swap", "evaluation", "group", "engine"]
"""What opens the gate: the next version, an engine that takes the newest one, the end of an evaluation, that of a
group, or an engine that serves."""
_WORDS: dict[Awaited, str] = {
    "version": "the next version of the weights",
    "swap": "an engine that takes the newest weights",
    "evaluation": "the end of an evaluation",
    "group": "the end of a group at hand",
    "engine": "an engine that serves",
}


class Pace:
    """How long what comes again and again takes as a rule: the median of the last ones. There may be several at once,
    each with a key of its own."""

    def __init__(self) -> None:
        self._spans: deque[float] = deque(maxlen=_LATELY)
        self._began: dict[Hashable, float] = {}

    @property
    def usual_s(self) -> float | None:
        """None until one has ended."""
        return median(self._spans) if self._spans else None

    def begin(self, now: float, key: Hashable = None) -> None:
        self._began[key] = now

    def end(self, now: float, key: Hashable = None, *, count: int = 1) -> None:
        """So many have ended since the beginning, one after another."""
        began = self._began.pop(key, None)
        if began is not None:
            self._spans.extend([(now - began) / count] * count)

    def left_s(self, now: float) -> float | None:
        """Until the first of those at hand ends, if they take as long as usual. Nothing is known of one that takes
        longer: 0 where all do. None if none is at hand, or nothing is usual yet."""
        usual = self.usual_s
        if usual is None or not self._began:
            return None
        return min((left for began in self._began.values() if (left := began + usual - now) > 0), default=0.0)


@dataclass(frozen=True, slots=True)
class GateState:
    """What is known of a moment at which no group starts."""

    bound: Bound | None
    """What would keep a group from starting on the version of the batch at hand, the newest that there can be."""
    sealed: bool = False
    """No group enters the batch at hand any more."""
    behind: bool = False
    """No engine has that version yet."""
    serves: bool = True
    """An engine does."""
    asleep: bool = False
    """The engines sleep, or are to, while the trainer has their devices."""
    evaluated: bool = False
    """An evaluation holds all engines at their version, or comes before all groups."""


def awaited(state: GateState) -> tuple[Awaited, ...]:
    """All that has to come before a group may start; nothing if one may."""
    evaluation: tuple[Awaited, ...] = ("evaluation",) if state.evaluated else ()
    if state.bound == "ahead" and not state.sealed and not state.asleep:
        return (*evaluation, "group")
    if state.bound is not None or state.asleep:
        return (*evaluation, "version")
    if evaluation:
        return evaluation
    if state.behind:
        return ("swap",)
    return () if state.serves else ("engine",)


@dataclass(frozen=True, slots=True)
class Opening:
    """When the gate opens."""

    awaited: tuple[Awaited, ...]
    seconds: float | None
    """None: nothing tells."""

    def describe(self) -> str:
        """What is waited for; empty if nothing is."""
        return " and ".join(_WORDS[each] for each in self.awaited)


def opening(state: GateState, versions: Pace, evaluations: Pace, groups: Pace, now: float) -> Opening:
    """`versions`: from each to the next. A swap is there in a moment; nothing is known of an engine that is away."""
    parts = awaited(state)
    paces = {"version": versions, "evaluation": evaluations, "group": groups}
    told: dict[str, float | None] = {"swap": 0.0, **{each: pace.left_s(now) for each, pace in paces.items()}}
    left = [told.get(each) for each in parts]
    known = [seconds for seconds in left if seconds is not None]
    return Opening(parts, max(known, default=0.0) if len(known) == len(left) else None)
