"""In which order the calls of an actor begin: as they were asked. Ray has them begin as they come, and one that brings
much comes by the object store, after others that were asked next. Ranks that make passes together have to begin them in
the same order.

Of each asker a call begins once all that it asked before have begun, or were stopped before that. No call waits for one
of another asker, nor for the end of any. So the first one that has not begun never waits, if it comes; one that does
not is waited for until a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.runtime.protocol import Clock, WaitTimeout


class CallOrder:
    """Calls have numbers: whose they are, a dot, and a count from 0."""

    def __init__(self, clock: Clock, seconds: float, missed: Callable[[str], None]) -> None:
        """`missed` is told of calls that have not come within `seconds`, and are not waited for any more."""
        self._clock = clock
        self._seconds = seconds
        self._missed = missed
        self._lines: dict[str, _Line] = {}

    async def turn(self, number: str) -> None:
        """Returns when the call is to begin. What is done then without awaiting is done before others of this asker."""
        asker, place = _parts(number)
        line = self._lines.setdefault(asker, _Line())
        while line.next < place:
            turn = line.waiting[place] = asyncio.get_running_loop().create_future()
            try:
                await self._clock.wait_for(turn, self._seconds, f"calls before {number}")
            except WaitTimeout:
                if missing := [each for each in range(line.next, place) if not line.has_come(each)]:
                    told = ", ".join(map(str, missing))
                    self._missed(f"call {number} begins before {told}, which had not come after {self._seconds:.0f} s")
                    line.pass_by(*missing)
            finally:
                line.waiting.pop(place, None)
        line.pass_by(place)

    def ended(self, number: str) -> None:
        """Nobody waits for it any more: it may have been stopped before its turn."""
        asker, place = _parts(number)
        if (line := self._lines.get(asker)) is not None:
            line.pass_by(place)

    def has_come(self, number: str) -> bool:
        """Whether it waits, has begun, or ended."""
        asker, place = _parts(number)
        return (line := self._lines.get(asker)) is not None and line.has_come(place)

    def forget(self, whose: Callable[[str], bool]) -> None:
        """Askers who ask nothing any more, by any number of theirs."""
        for asker in [asker for asker in self._lines if whose(asker)]:
            del self._lines[asker]


@dataclass(slots=True)
class _Line:
    """The calls of one asker."""

    next: int = 0
    """The first that has not begun."""
    waiting: dict[int, asyncio.Future[None]] = field(default_factory=dict)
    passed: set[int] = field(default_factory=set)
    """Later ones that are not waited for."""

    def has_come(self, place: int) -> bool:
        return place < self.next or place in self.waiting or place in self.passed

    def pass_by(self, *places: int) -> None:
        self.passed.update(place for place in places if place >= self.next)
        while self.next in self.passed:
            self.passed.remove(self.next)
            self.next += 1
        if (turn := self.waiting.get(self.next)) is not None and not turn.done():
            turn.set_result(None)


def _parts(number: str) -> tuple[str, int]:
    asker, _, place = number.rpartition(".")
    return asker, int(place)
