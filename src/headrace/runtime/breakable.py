"""Work that somebody other than who waits for it may end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class BrokenOff(Exception):
    """It was ended before it was done."""


class Breakable(Generic[T]):
    """Begins at once. Whoever waits is told by BrokenOff, once it has cleaned up: it is cancelled, as if its waiter
    were."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._task = asyncio.create_task(work)
        self._is_broken = False

    async def result(self) -> T:
        """Raises BrokenOff, and what the work raises. Cancelled, so is the work."""
        try:
            return await self._task
        except asyncio.CancelledError:
            waiter = asyncio.current_task()
            if not self._is_broken or (waiter is not None and waiter.cancelling()):
                raise
            raise BrokenOff from None

    def break_off(self) -> None:
        """Of one that is done, or ends already, nothing happens."""
        if not self._is_broken:
            self._is_broken = True
            self._task.cancel()
