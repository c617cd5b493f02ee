"""Being told to stop, by SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from types import TracebackType


class StopRequest:
    """While entered, the first signal is a request; it gives the next one back its own meaning: to end at once."""

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason = ""

    def request(self, reason: str) -> None:
        self.reason = reason
        self._event.set()

    async def wait(self) -> None:
        """Until it is requested; whoever waits races it against its work."""
        await self._event.wait()

    def __enter__(self) -> StopRequest:
        loop = asyncio.get_running_loop()
        for number in self._SIGNALS:
            loop.add_signal_handler(number, self._received, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listen_no_more()

    def _received(self, number: signal.Signals) -> None:
        self.request(number.name)
        self._listen_no_more()

    def _listen_no_more(self) -> None:
        loop = asyncio.get_running_loop()
        for number in self._SIGNALS:
            loop.remove_signal_handler(number)
