"""Whether work on a lane gets on. It says so itself, from within: a thread beside it would go on where it hangs.

What computes calls `mark` at the beginning of each unit, a layer say, and `rest` behind the last one, or is `working`
meanwhile. Of work that says nothing nothing is known, and its caller's deadline alone ends the wait.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from headrace.errors import HeadraceError

Unit = Literal["microbatch", "layer", "decode_step", "chunk"]
LIMIT_S, TIMES = 30.0, 5.0
"""A limit, unless given: seconds, and how often the longest so far comes on top."""
FIRST_S = 300.0
"""That of the first of a unit: kernels are found and compiled, and ranks connect."""


class Stuck(HeadraceError, RuntimeError):
    """Work that has made no progress for longer than its unit's limit."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a call is. Of one that is stuck its words end so: its process, which ends with it, can say nothing
    else."""

    marks: int
    """How many there were in it."""
    waits: bool
    """For other processes, in one of torch's collectives."""

    def __str__(self) -> str:
        return f"it is at mark {self.marks} of its work{', and waits for other processes' * self.waits}"

    @classmethod
    def told_in(cls, words: str) -> Standing | None:
        """By a call that was stuck; None where there was none."""
        found = re.search(r" is stuck: .*; it is at mark (\d+) of its work(, and waits for other processes)?", words)
        return None if found is None else cls(int(found[1]), found[2] is not None)


class Progress:
    """Of the work of one process: what a unit may take, and what it took at most so far."""

    def __init__(self, limits: Mapping[str, float] | None = None) -> None:
        """`limits`: seconds, of units that are to have one of their own."""
        self._limits = dict(limits or {})
        self._longest: dict[str, float] = {}

    def limit(self, unit: str) -> float:
        """Seconds without progress after which work in such a unit is stuck."""
        given = self._limits.get(unit)
        if given is not None:
            return given
        longest = self._longest.get(unit)
        return FIRST_S if longest is None else LIMIT_S + TIMES * longest

    def took(self, unit: str, seconds: float) -> None:
        if seconds >= self._longest.get(unit, 0.0):
            self._longest[unit] = seconds


class Marks:
    """What one call says of itself, on its thread; others look at it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.now: tuple[int, Unit | None, float] = 0, None, 0.0
        """How many there were, the unit that it is in, and since when: always of one moment."""

    def mark(self, unit: Unit) -> None:
        """It begins."""
        self._begin(unit)

    def rest(self) -> None:
        """Nothing is to be expected of it."""
        self._begin(None)

    def _begin(self, unit: Unit | None) -> None:
        (count, last, since), at = self.now, time.monotonic()
        if last is not None:
            self._progress.took(last, at - since)
        self.now = count + 1, unit, at


class _OfThread(threading.local):
    marks: Marks | None = None


_own = _OfThread()


def current() -> Marks | None:
    """Of the call that this thread is in; for threads that compute for it."""
    return _own.marks


def mark(unit: Unit) -> None:
    """A unit begins. Nothing where nobody looks."""
    if (marks := _own.marks) is not None:
        marks.mark(unit)


def rest() -> None:
    """See `Marks.rest`."""
    if (marks := _own.marks) is not None:
        marks.rest()


@contextmanager
def working(unit: Unit) -> Iterator[None]:
    """In units, of which the first is one such."""
    mark(unit)
    try:
        yield
    finally:
        rest()


@contextmanager
def marked_by(marks: Marks) -> Iterator[None]:
    """This thread's call says what it says there."""
    _own.marks = marks
    try:
        yield
    finally:
        _own.marks = None


class Look:
    """From another thread, again and again, at one call."""

    def __init__(self, progress: Progress, marks: Marks) -> None:
        self._progress = progress
        self._marks = marks
        self._count = -1
        self._silent_s = 0.0

    def after(self, seconds: float) -> tuple[Unit, float] | None:
        """`seconds` later than the last look, of which only those count in which the looker itself could look. The unit
        that it is stuck in, and for how long."""
        count, unit, _ = self._marks.now
        if count != self._count:
            self._count, self._silent_s = count, 0.0
            return None
        self._silent_s += seconds
        if unit is None or self._silent_s <= self._progress.limit(unit):
            return None
        return unit, self._silent_s
