"""Watches that the event loop goes round, and says at which line of whose code it is blocked."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from headrace.runtime.event_loop import on_own_thread
from headrace.runtime.watchdogs.loop_watch import BEAT_S, BLOCKED_S

_END_S = 5.0

logger = logging.getLogger(__name__)


class LoopWatchdog:
    """While entered, a process apart sees that the loop beats. It says when the loop is blocked, for how long and
    where, writes that into the run's record, and ends this process on a second SIGINT or SIGTERM, if it does not do so
    by itself.

    The place comes from `faulthandler`'s timer, and signals from Python's handler in C: neither needs the interpreter's
    lock. One may be entered at a time. Only signals that this process handles in Python are seen.
    """

    def __init__(self, *, owners: Mapping[str, str], ends_after_s: float, record: Path | None = None) -> None:
        """`owners`: the config's key for each file of the user's that it names. A loop that is blocked for
        `ends_after_s` ends the process. `record`: the run's database."""
        self._owners = dict(owners)
        self._ends_after_s = ends_after_s
        self._record = record
        self._process: subprocess.Popen[bytes] | None = None
        self._beats = self._dumps = self._woken_before = -1
        self._is_woken = False
        self._beating: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LoopWatchdog:
        try:
            self._start()
        except OSError as error:
            logger.warning("the event loop is not watched: %s", error)
            self._stop()
            return self
        self._beating = asyncio.create_task(self._beat(), name="watchdog's beat")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            self._beating = None
        process = self._process
        self._stop()
        if process is not None:
            try:
                await on_own_thread(process.wait, _END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                await on_own_thread(process.wait)

    def _start(self) -> None:
        beats, self._beats = os.pipe()
        dumps, self._dumps = os.pipe()
        for written in (self._beats, self._dumps):  # whatever becomes of the reader, nobody here waits for it
            os.set_blocking(written, False)
        spec = {
            "pid": os.getpid(),
            "thread": threading.get_ident(),
            "beats": beats,
            "dumps": dumps,
            "owners": self._owners,
            "ends_after_s": self._ends_after_s,
            "record": None if self._record is None else str(self._record.resolve()),
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "headrace.runtime.watchdogs.watchdog_process", json.dumps(spec)],
                pass_fds=(beats, dumps),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(beats)
            os.close(dumps)
        with contextlib.suppress(ValueError):  # not the main thread, which alone gets signals
            self._woken_before = signal.set_wakeup_fd(self._beats, warn_on_full_buffer=False)
            self._is_woken = True
            os.register_at_fork(after_in_child=self._be_a_fork)

    def _stop(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        if self._is_woken:
            self._is_woken = False
            present = signal.set_wakeup_fd(self._woken_before)
            if present != self._beats:  # somebody else wants to know of signals now
                signal.set_wakeup_fd(present)
        for descriptor in (self._beats, self._dumps):
            if descriptor >= 0:
                os.close(descriptor)
        self._beats = self._dumps = -1
        self._process = None

    async def _beat(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody watches any more
            while True:
                faulthandler.dump_traceback_later(BLOCKED_S, repeat=True, file=self._dumps)
                with contextlib.suppress(BlockingIOError):
                    os.write(self._beats, b"\0")
                await asyncio.sleep(BEAT_S)

    def _be_a_fork(self) -> None:
        """In a fork of the user's making, whose signals are not the run's."""
        if self._is_woken:
            signal.set_wakeup_fd(-1)
