"""The thread of a lane."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from headrace.runtime.watchdogs.dumps import DEBUGGERS

T = TypeVar("T")

_EXCHANGE = os.path.join("", "torch", "distributed", "")
"""Is in the names of files of such functions."""
_CALLS_OF_TORCH = os.path.join("", "torch", "_ops.py")
"""Where it calls what is not written in Python."""
NAME_PREFIX = "headrace-"
"""Begins the names of lanes' threads."""


class LaneThread:
    """Runs one call after another. It does not hold a process that wants to end: a call of the user's may never return,
    which no Python thread can be made to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[Future[Any]], None]] | None] = SimpleQueue()
        self._closed = False
        self._left: Exception | None = None
        """What ends those that waited behind a call that was left."""
        self._thread = threading.Thread(target=self._run, name=f"{NAME_PREFIX}{name}", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()

        def run(future: Future[T]) -> None:
            if self._closed and self._left is None:
                future.cancel()
            if not future.set_running_or_notify_cancel():
                return
            if self._left is not None:
                future.set_exception(self._left)
                return
            try:
                future.set_result(call())
            except StopIteration as error:  # as in a coroutine (PEP 479): no event loop could carry it
                raised = RuntimeError("what was called raised StopIteration")
                raised.__cause__ = error
                future.set_exception(raised)
            except BaseException as error:  # whoever awaits it sees it
                future.set_exception(error)
            finally:
                del future  # an error has this frame, and would be in a ring with it

        self._calls.put((future, run))
        return future

    def leave(self, error: Exception) -> None:
        """To its call, which does not end: what waits behind that fails with `error`."""
        self._left, self._closed = error, True
        with suppress(Empty):  # the call may end just now, and the thread take the next one itself
            while True:
                waiting = self._calls.get_nowait()
                if waiting is not None and waiting[0].set_running_or_notify_cancel():
                    waiting[0].set_exception(error)
        self._calls.put(None)

    def is_debugged(self) -> bool:
        """Whether it waits for somebody at a debugger."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        while frame is not None:
            if os.path.basename(frame.f_code.co_filename) in DEBUGGERS:
                return True
            frame = frame.f_back
        return False

    def waits_for_others(self) -> bool:
        """Whether it is in one of torch's functions that exchange something with other processes, or wait for that."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        while frame is not None and frame.f_code.co_filename.endswith(_CALLS_OF_TORCH):
            frame = frame.f_back
        return frame is not None and _EXCHANGE in frame.f_code.co_filename

    def stack(self) -> str:
        """Where it is now, as Python prints it."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame))

    def close(self) -> None:
        """Take no more calls: those that have not begun are cancelled."""
        self._closed = True
        self._calls.put(None)

    def join(self, seconds: float) -> bool:
        """Wait for the call at hand, after `close`; False if it has not ended in time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call[1](call[0])
            del call  # with what it gave: until the next one comes, nobody else may have that
