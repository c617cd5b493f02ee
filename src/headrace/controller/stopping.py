"""Being told to stop, by SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopFlag:
    """While entered, the first SIGINT or SIGTERM sets the flag, and gives the next one back its own meaning. For code
    that no event loop runs; outside of a process's main thread, which alone gets signals, it stays as it is."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopFlag:
        with suppress(ValueError):  # not the main thread
            self._before = {number: signal.signal(number, self._received) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._give_back()

    def _received(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._give_back()

    def _give_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


class StopRequest:
    """While entered, the first signal is a request; it gives the next one back its own meaning: to end at once."""

    def __init__(self, words: str = "") -> None:
        """`words`: what is said of it when a signal comes; nothing unless given."""
        self._words = words
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
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._received, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listen_no_more()

    def _received(self, number: signal.Signals) -> None:
        if self._words:
            logger.warning("told to stop by %s: %s", number.name, self._words)
        self.request(number.name)
        self._listen_no_more()

    def _listen_no_more(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
