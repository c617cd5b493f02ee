"""The time in which a call of a rollout function lets groups wait, and has none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class UntakenWatch:
    """Tells once it was so for `seconds` in one go. No group waits while the gate is shut: then a call has its time."""

    def __init__(self, seconds: float, are_untaken: Callable[[], bool], late: Callable[[], None]) -> None:
        self._seconds = seconds
        self._are_untaken = are_untaken
        self._late = late
        self._is_called = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """A call does, and may take groups."""
        self._is_called = True
        self.look()

    def end(self) -> None:
        """It is to take no more."""
        self._is_called = False
        self.look()

    def look(self) -> None:
        """To be called when a group comes, waits again, or has ended."""
        if not (self._is_called and self._are_untaken()):
            self.taken()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._late)

    def taken(self) -> None:
        """The call has a group."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
