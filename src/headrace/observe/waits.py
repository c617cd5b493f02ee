"""Who waits for what, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class _Wait:
    seconds: float = 0.0
    """Of the times that are over."""
    open: int = 0
    since: float = 0.0
    """When the present time began; meaningless while `open` is 0."""


class WaitMeter:
    """Seconds in which a side waited for something. Waits of one side for one thing that overlap count
    once."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` gives monotonic seconds."""
        self._now = now
        self._waits: dict[tuple[str, str], _Wait] = {}

    @contextmanager
    def waiting(self, side: str, what: str) -> Iterator[None]:
        wait = self._waits.setdefault((side, what), _Wait())
        if wait.open == 0:
            wait.since = self._now()
        wait.open += 1
        try:
            yield
        finally:
            wait.open -= 1
            if wait.open == 0:
                wait.seconds += self._now() - wait.since

    def totals(self) -> dict[str, float]:
        """Seconds by `side: what`, waits that are still open included up to now."""
        now = self._now()
        return {
            f"{side}: {what}": wait.seconds + (now - wait.since if wait.open else 0.0)
            for (side, what), wait in self._waits.items()
        }
