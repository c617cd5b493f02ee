"""Being told to stop, by SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from headrace.runtime.terminal import show_cursor

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopFlag:
    """While entered, the first SIGINT or SIGTERM sets the flag, and the second ends the process at once, as a kill
    does: what is at hand may never end. For code that no event loop runs; outside of a process's main thread, which
    alone gets signals, only `request_soon` sets it."""

    def __init__(self, words: str = "") -> None:
        """`words`: what is said of it when a signal comes; nothing unless given."""
        self.requested = False
        self._words = words
        self._signalled = False
        self._before: dict[int, Any] = {}

    def request_soon(self, reason: str) -> None:
        """From any thread, before it is entered too."""
        self.requested = True

    def __enter__(self) -> StopFlag:
        with suppress(ValueError):  # not the main thread
            self._before = {number: signal.signal(number, self._received) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        self._before = {}

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self._signalled:
            _end_now(number)
        self._signalled = self.requested = True
        if self._words:
            logger.warning("told to stop by %s: %s", signal.Signals(number).name, self._words)


class StopRequest:
    """While entered, the first signal is a request, and the second ends the process at once, as a kill does: Python
    itself handles them, so that it does so where the event loop is blocked too. Outside of a process's main thread,
    which alone gets signals, only `request` and `request_soon` are one."""

    def __init__(self, words: str = "", signals: Sequence[signal.Signals] = _SIGNALS) -> None:
        """`words`: what is said of it when a signal comes; nothing unless given. `signals`: that are a request."""
        self._words = words
        self._signals = tuple(signals)
        self._event = asyncio.Event()
        self._before: dict[int, Any] = {}
        self._signalled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.reason = ""

    def request(self, reason: str) -> None:
        self.reason = reason
        self._event.set()

    def request_soon(self, reason: str) -> None:
        """As `request`, from any thread, before it is entered too."""
        self.reason = reason
        if (loop := self._loop) is not None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._told, reason)

    async def wait(self) -> None:
        """Until it is requested; whoever waits races it against its work."""
        await self._event.wait()

    def __enter__(self) -> StopRequest:
        self._loop = asyncio.get_running_loop()
        if self.reason:
            self._told(self.reason)
        with suppress(ValueError):  # not the main thread
            self._before = {number: signal.signal(number, self._received) for number in self._signals}
        if self._before:
            os.register_at_fork(after_in_child=self._listen_no_more)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listen_no_more()

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self._signalled:
            _end_now(number)
        self._signalled = True
        self.request_soon(signal.Signals(number).name)

    def _told(self, name: str) -> None:
        if self._words:
            logger.warning("told to stop by %s: %s", name, self._words)
        self.request(name)

    def _listen_no_more(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        self._before = {}


def _end_now(number: int) -> None:
    """By the signal itself."""
    show_cursor(1)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
