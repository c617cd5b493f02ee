"""A time limit whose clock can stand still: what waits for somebody else's return uses up nobody's time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from headrace.runtime.protocol import Clock, WaitTimeout

T = TypeVar("T")


class StandStill:
    """The seconds in which something stood still, which may begin several times at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reasons = 0
        self._since = 0.0
        self._seconds = 0.0

    @property
    def stands(self) -> bool:
        return self._reasons > 0

    def seconds(self) -> float:
        """Up to now."""
        return self._seconds + (self._clock.now() - self._since if self._reasons else 0.0)

    def begin(self) -> None:
        if not self._reasons:
            self._since = self._clock.now()
        self._reasons += 1

    def end(self) -> None:
        self._reasons -= 1
        if not self._reasons:
            self._seconds += self._clock.now() - self._since

    @contextmanager
    def standing(self) -> Iterator[None]:
        self.begin()
        try:
            yield
        finally:
            self.end()


class Patience:
    """A limit of so many seconds, less those in which it stood still."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.still = StandStill(clock)
        self._clock = clock
        self._seconds = seconds
        self._began = clock.now()

    def left(self) -> float:
        """Seconds."""
        return self._began + self._seconds + self.still.seconds() - self._clock.now()

    async def wait_for(self, awaitable: Awaitable[T], what: str) -> T:
        """The result of `awaitable`, or WaitTimeout (after cancelling it) once the time is up."""
        task = asyncio.ensure_future(awaitable)
        try:
            while True:
                left = self.left()
                if left <= 0 and not self.still.stands:
                    raise WaitTimeout(what, self._seconds)
                if await self._ended(task, max(left, self._seconds if self.still.stands else 0.0), what):
                    return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])

    async def _ended(self, task: asyncio.Future[T], seconds: float, what: str) -> bool:
        try:
            await self._clock.wait_for(asyncio.wait([task]), seconds, what)
        except WaitTimeout:
            return task.done()
        return True
