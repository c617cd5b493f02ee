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
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from headrace.runtime.event_loop import on_own_thread
from headrace.runtime.watchdogs.loop_watch import BEAT, BEAT_S, BLOCKED_S, DUMP_SIGNAL, HEADING, TURN

_END_S = 5.0

logger = logging.getLogger(__name__)


class LoopWatchdog:
    """While entered, a process apart sees that the loop beats. It says when the loop is blocked, for how long and
    where, writes that into the run's record, and ends this process on a second SIGINT or SIGTERM, if it does not do so
    by itself.

    The place comes from a thread here, which looks at the others while it holds the interpreter's lock. Where that
    never gets it, the process apart sends `DUMP_SIGNAL`, at which `faulthandler` looks without it: of threads that run
    meanwhile that may be the end of the process, so no timer does it. Signals come from Python's handler in C. One may
    be entered at a time. Only signals that this process handles in Python are seen.
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
        self._beaten = time.monotonic()
        self._ends = threading.Event()
        self._looking: threading.Thread | None = None

    async def __aenter__(self) -> LoopWatchdog:
        try:
            self._start()
        except OSError as error:
            logger.warning("the event loop is not watched: %s", error)
            self._stop()
            self._forget()
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
        try:
            if process is not None:
                try:
                    await on_own_thread(process.wait, _END_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    await on_own_thread(process.wait)
        finally:
            self._forget()

    def _start(self) -> None:
        """Raises OSError."""
        beats, self._beats = os.pipe()
        dumps, self._dumps = os.pipe()
        for written in (self._beats, self._dumps):  # whatever becomes of the reader, nobody here waits for it
            os.set_blocking(written, False)
        if DUMP_SIGNAL is not None:  # before there is anybody who sends it
            faulthandler.register(DUMP_SIGNAL, file=self._dumps, all_threads=True, chain=False)
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
        self._beaten = time.monotonic()
        self._ends.clear()
        self._looking = threading.Thread(target=self._look, name="watchdog", daemon=True)
        self._looking.start()
        with contextlib.suppress(ValueError):  # not the main thread, which alone gets signals
            self._woken_before = signal.set_wakeup_fd(self._beats, warn_on_full_buffer=False)
            self._is_woken = True
            os.register_at_fork(after_in_child=self._be_a_fork)

    def _stop(self) -> None:
        if self._looking is not None:
            self._ends.set()
            self._looking.join()
            self._looking = None
        if self._is_woken:
            self._is_woken = False
            present = signal.set_wakeup_fd(self._woken_before)
            if present != self._beats:  # somebody else wants to know of signals now
                signal.set_wakeup_fd(present)
        if self._beats >= 0:
            os.close(self._beats)
        self._beats, self._process = -1, None

    def _forget(self) -> None:
        """Once nobody sends the signal any more, which would end this process."""
        if DUMP_SIGNAL is not None:
            faulthandler.unregister(DUMP_SIGNAL)
        if self._dumps >= 0:
            os.close(self._dumps)
        self._dumps = -1

    async def _beat(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody watches any more
            while True:
                self._beaten = time.monotonic()
                with contextlib.suppress(BlockingIOError):
                    os.write(self._beats, bytes([BEAT]))
                await asyncio.sleep(BEAT_S)

    def _look(self) -> None:
        """On a thread: tell that the interpreter goes on; and where the loop is, whenever it has not beaten for
        another `BLOCKED_S`."""
        seen, dumps = self._beaten, 0
        with contextlib.suppress(BrokenPipeError):
            while not self._ends.wait(BEAT_S):
                with contextlib.suppress(BlockingIOError):
                    os.write(self._beats, bytes([TURN]))
                if self._beaten != seen:
                    seen, dumps = self._beaten, 0
                if time.monotonic() - seen >= (dumps + 1) * BLOCKED_S:
                    dumps += 1
                    with contextlib.suppress(BlockingIOError):
                        os.write(self._dumps, HEADING.encode())
                        faulthandler.dump_traceback(file=self._dumps, all_threads=True)

    def _be_a_fork(self) -> None:
        """In a fork of the user's making, whose signals are not the run's."""
        if self._is_woken:
            signal.set_wakeup_fd(-1)
