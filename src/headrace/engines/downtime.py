"""The time in which no engine of a pool serves."""

from __future__ import annotations

from headrace.runtime.patience import StandStill
from headrace.runtime.protocol import Clock


class Downtime:
    def __init__(self, clock: Clock) -> None:
        self.outage = StandStill(clock)
        """The seconds in which a request waited for an engine that may serve it, or none served at all."""
        self._clock = clock
        self._is_out = False
        self._since: float | None = None

    @property
    def seconds(self) -> float | None:
        """Since an engine last served, those aside in which all were to sleep; None while one does."""
        return None if self._since is None else self._clock.now() - self._since

    def count(self, *, serves: bool, sleeps: bool) -> None:
        """`serves`: whether an engine does from now on. `sleeps`: none is to: nobody misses them."""
        if not serves and not self._is_out:
            self.outage.begin()
        elif serves and self._is_out:
            self.outage.end()
        self._is_out = not serves
        if serves or sleeps:
            self._since = None
        elif self._since is None:
            self._since = self._clock.now()
