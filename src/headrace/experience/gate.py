"""When a group may start again, foretold from what keeps it from starting.

What shuts the gate (`Schedule.shut_by`) says with what it opens. Groups are counted against versions: the next version
opens it, a usual batch after the last one. Or against those that are live: while the batch has places, one that ends
opens it, of which the schedule knows nothing; once it is sealed nobody enters it any more, and the next version does.
"""

from __future__ import annotations

from collections import deque
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
    """How long what comes again and again takes as a rule: the median of the last ones."""

    def __init__(self) -> None:
        self._spans: deque[float] = deque(maxlen=_LATELY)
        self._began: float | None = None

    @property
    def usual_s(self) -> float | None:
        """None until one has ended."""
        return median(self._spans) if self._spans else None

    def begin(self, now: float) -> None:
        self._began = now

    def end(self, now: float, count: int = 1) -> None:
        """So many have ended since the beginning, one after another."""
        if self._began is not None:
            self._spans.extend([(now - self._began) / count] * count)
        self._began = None

    def left_s(self, now: float) -> float | None:
        """Until the one at hand ends, if it takes as long as usual; None if none is, or nothing is usual yet."""
        usual = self.usual_s
        return None if usual is None or self._began is None else max(self._began + usual - now, 0.0)


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


def opening(state: GateState, versions: Pace, evaluations: Pace, now: float) -> Opening:
    """`versions`: from each to the next. A swap is there in a moment; nothing is known of groups and engines."""
    parts = awaited(state)
    told = {"version": versions.left_s(now), "evaluation": evaluations.left_s(now), "swap": 0.0}
    left = [told.get(each) for each in parts]
    known = [seconds for seconds in left if seconds is not None]
    return Opening(parts, max(known, default=0.0) if len(known) == len(left) else None)
