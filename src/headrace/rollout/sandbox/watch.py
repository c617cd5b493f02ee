"""Watches a child process from a process that does nothing else: what it writes, when it ends, and its time."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import time  # noqa: TID251 (in a child, where there is no runtime)
from collections.abc import Sequence
from dataclasses import dataclass, field

_TICK_S = 0.01
"""How often a child is asked for where the kernel does not tell."""
_CHUNK = 1 << 16
_KILLING_S = 0.5


@dataclass(eq=False)
class Stream:
    """The reading end of a pipe from the child."""

    fd: int
    most_bytes: int
    ends_at_most: bool
    """Whether the child has to end once it has written more; otherwise the rest is thrown away."""
    data: bytearray = field(default_factory=bytearray)

    def read(self) -> bool:
        """Take what is there; False at its end, or where nothing is there now."""
        try:
            chunk = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return False
        self.data += chunk[: max(self.most_bytes + 1 - len(self.data), 0)]
        return bool(chunk)

    @property
    def is_over(self) -> bool:
        return len(self.data) > self.most_bytes


@dataclass(frozen=True, slots=True)
class Ending:
    code: int | None
    """Exit code, or minus the signal; None of a child that was still running."""
    overflowed: bool
    """It wrote more than it may."""

    @property
    def words(self) -> str:
        if self.code is None:
            return "did not end"
        if self.code >= 0:
            return f"ended with exit status {self.code}"
        return f"was killed by {signal.Signals(-self.code).name}"


def now() -> float:
    return time.monotonic()


def watch(child: int, streams: Sequence[Stream], until: float) -> Ending:
    """Wait for `child` to end, reading its `streams`, until `now()` is `until` or a stream overflows.

    A child that still runs then is killed. What the child left running is not: see `kill_descendants`.
    """
    poll, by_fd = select.poll(), {stream.fd: stream for stream in streams}
    for stream in streams:
        os.set_blocking(stream.fd, False)
        poll.register(stream.fd, select.POLLIN)
    with contextlib.ExitStack() as stack:
        handle = _handle_of(child)
        if handle is not None:
            stack.callback(os.close, handle)
            poll.register(handle, select.POLLIN)
        while True:
            left = until - now()
            if left <= 0:
                return _kill(child, overflowed=False)
            wait_s = left if handle is not None else min(left, _TICK_S)
            for fd, _ in poll.poll(math.ceil(wait_s * 1000)):
                if fd in by_fd and not by_fd[fd].read():
                    poll.unregister(fd)
            if any(stream.is_over and stream.ends_at_most for stream in streams):
                return _kill(child, overflowed=True)
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                for stream in streams:
                    while not stream.is_over and stream.read():
                        pass
                over = any(stream.is_over and stream.ends_at_most for stream in streams)
                return Ending(os.waitstatus_to_exitcode(status), over)


def kill_descendants() -> None:
    """End every process that comes from this one, also while they multiply: first all are stopped, then killed.

    This process must have adopted its orphans.
    """
    end = now() + _KILLING_S
    while _has_children() and now() < end:
        import psutil  # only where something was left behind

        stopped: set[int] = set()
        while now() < end:
            found = {child.pid for child in psutil.Process().children(recursive=True)} - stopped
            if not found:
                break
            for pid in found:
                _signal(pid, signal.SIGSTOP)
            stopped |= found
        for pid in stopped:
            _signal(pid, signal.SIGKILL)


def _has_children() -> bool:
    """Whether there is a child left, after those that have ended are gone."""
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if not ended:
            return True


def _kill(child: int, *, overflowed: bool) -> Ending:
    _signal(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return Ending(None, overflowed)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _handle_of(child: int) -> int | None:
    """A descriptor that becomes readable when `child` ends, where the system has such."""
    try:
        return os.pidfd_open(child)
    except (AttributeError, OSError):
        return None
