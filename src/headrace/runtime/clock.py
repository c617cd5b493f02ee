"""The clocks of event loops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from headrace.runtime.protocol import WaitTimeout

T = TypeVar("T")


class LoopClock:
    """Waits as the running event loop does."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait_for(self, awaitable: Awaitable[T], seconds: float, what: str) -> T:
        """See `Clock.wait_for`. A TimeoutError raised by `awaitable` itself passes through unchanged."""
        try:
            async with asyncio.timeout(seconds) as scope:
                return await awaitable
        except TimeoutError as error:
            if scope.expired():
                raise WaitTimeout(what, seconds) from error
            raise


class SystemClock(LoopClock):
    """The machine's clock."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


def processor_seconds() -> float:
    """That the calling thread has had: of what it computed, whatever else the machine is busy with."""
    return time.thread_time()
