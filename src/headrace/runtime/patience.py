"""A time limit whose clock can stand still: what waits for somebody else's return uses up nobody's time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
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
        self.listeners: list[Callable[[], None]] = []
        """Called when it begins, and when it ends."""

    @property
    def stands(self) -> bool:
        return self._reasons > 0

    def seconds(self) -> float:
        """Up to now."""
        return self._seconds + (self._clock.now() - self._since if self._reasons else 0.0)

    def begin(self) -> None:
        self._reasons += 1
        if self._reasons == 1:
            self._since = self._clock.now()
            self._tell()

    def end(self) -> None:
        self._reasons -= 1
        if not self._reasons:
            self._seconds += self._clock.now() - self._since
            self._tell()

    def _tell(self) -> None:
        for listener in self.listeners:
            listener()

    @contextmanager
    def standing(self) -> Iterator[None]:
        self.begin()
        try:
            yield
        finally:
            self.end()


@contextmanager
def standing_with(cause: StandStill, clocks: Iterable[StandStill]) -> Iterator[None]:
    """Within, the clocks stand still while `cause` does."""
    stood: list[StandStill] = []

    def follow() -> None:
        if cause.stands and not stood:
            stood.extend(clocks)
            for clock in stood:
                clock.begin()
        elif not cause.stands:
            end()

    def end() -> None:
        ended, stood[:] = list(stood), []
        for clock in ended:
            clock.end()

    cause.listeners.append(follow)
    follow()
    try:
        yield
    finally:
        cause.listeners.remove(follow)
        end()


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
        loop, still = asyncio.get_running_loop(), self.still

        def end() -> float | None:
            """By the loop's clock; None while it stands still."""
            return None if still.stands else loop.time() + max(self.left(), 0.0)

        def again() -> None:
            if not scope.expired():
                scope.reschedule(end())

        try:
            async with asyncio.timeout_at(end()) as scope:
                still.listeners.append(again)
                try:
                    return await awaitable
                finally:
                    still.listeners.remove(again)
        except TimeoutError as error:
            if scope.expired():
                raise WaitTimeout(what, self._seconds) from error
            raise
