"""Calls that wait for a scoring process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.experience.failures import FailureKind, describe
from headrace.rewards.outcome import Verdict


@dataclass(eq=False)
class Call:
    """One response to be scored, or one group."""

    id: int
    message: list[Any]
    outcome: asyncio.Future[Verdict]
    began: float | None = None
    """When it became the oldest of its process."""

    def age(self, now: float) -> float:
        """Seconds since then."""
        return 0.0 if self.began is None else now - self.began

    def settle(self, outcome: Verdict) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    def fail(self, kind: FailureKind, detail: str) -> None:
        self.settle((None, describe(kind, detail)))


class Taker(Protocol):
    @property
    def is_up(self) -> bool: ...

    @property
    def in_flight(self) -> int: ...

    def feed(self) -> None:
        """Take as many calls as it may have."""


class CallQueue:
    """First come, first served, by whoever of `takers` is least busy."""

    def __init__(self) -> None:
        self.takers: list[Taker] = []
        self._calls: deque[Call] = deque()

    def put(self, call: Call) -> None:
        self._calls.append(call)
        self._spread()

    def put_back(self, calls: Iterable[Call]) -> None:
        """Return `calls`, oldest first, to the front."""
        self._calls.extendleft(reversed(list(calls)))
        self._spread()

    def take(self) -> Call | None:
        """The oldest call that somebody still waits for."""
        while self._calls:
            call = self._calls.popleft()
            if not call.outcome.done():
                return call
        return None

    def fail_if_stranded(self, detail: str) -> None:
        """With nobody left to take them, calls fail."""
        if not any(taker.is_up for taker in self.takers):
            while call := self.take():
                call.fail(FailureKind.REWARD_DIED, detail)

    def cancel(self) -> None:
        while call := self.take():
            call.outcome.cancel()

    def _spread(self) -> None:
        for taker in sorted(self.takers, key=lambda taker: taker.in_flight):
            taker.feed()
