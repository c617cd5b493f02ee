"""Wake-ups: whoever waits for a change is woken by the change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.runtime.protocol import Clock, WaitTimeout


class Signal:
    """Wakes every waiter at each `notify`. For one event loop."""

    def __init__(self) -> None:
        self._waiters: dict[int, asyncio.Future[None]] = {}
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Have `listener` called at each `notify`, before anybody is woken."""
        self._listeners.append(listener)

    def notify(self) -> None:
        for listener in self._listeners:
            listener()
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, clock: Clock, seconds: float, what: str) -> None:
        """Until the next `notify`. Raises WaitTimeout."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[id(waiter)] = waiter
        try:
            await clock.wait_for(waiter, seconds, what)
        finally:
            self._waiters.pop(id(waiter), None)

    async def wait_until(
        self, condition: Callable[[], bool], clock: Clock, seconds: float, what: Callable[[], str]
    ) -> None:
        """Until `condition()` holds, looked at now and after each `notify`.

        Raises WaitTimeout with `what()`, worked out when the time is up.
        """
        end = clock.now() + seconds
        while not condition():
            left = end - clock.now()
            if left <= 0:
                raise WaitTimeout(what(), seconds)
            try:
                await self.wait(clock, left, "")
            except WaitTimeout:
                continue
