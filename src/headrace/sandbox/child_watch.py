"""Watches a child process from a process that does nothing else: what it writes, when it ends, and its time."""

from __future__ import annotations

import math
import os
import select
import signal
import time  # noqa: TID251 (in a child, where there is no runtime)
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.sandbox.descendants import send_signal
from headrace.sandbox.meters import Meter

_TICK_S = 0.01
"""How often a child is asked for where the kernel does not tell."""
_CHUNK = 1 << 16


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
        except OSError:
            return False
        self.data += chunk[: max(self.most_bytes + 1 - len(self.data), 0)]
        return bool(chunk)

    @property
    def is_over(self) -> bool:
        return len(self.data) > self.most_bytes


class Over(StrEnum):
    """Why a child was not let go on."""

    OUTPUT = "wrote more than it may"
    MEMORY = "took more memory than it may"
    TIME = "took longer than it may"
    WAIT = "did not end"
    """Until the time to which it is waited for, whoever is to blame."""


@dataclass(frozen=True, slots=True)
class Ending:
    code: int | None
    """Exit code, or minus the signal; None of a child that was still running."""
    over: Over | None = None
    """Of a child that ended by itself, only that it wrote more than it may."""

    @property
    def words(self) -> str:
        if self.over is not None:
            return self.over.value
        if self.code is None:
            return "did not end"
        if self.code >= 0:
            return f"ended with exit status {self.code}"
        return f"was killed by {signal_name(-self.code)}"


def signal_name(number: int) -> str:
    """As SIGKILL; some have a number alone."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def now() -> float:
    return time.monotonic()


def watch(
    child: int, streams: Sequence[Stream], until: float, *, memory: Meter | None = None, own_time: Meter | None = None
) -> Ending:
    """Wait for `child` to end, reading its `streams`, until `now()` is `until`, a stream overflows or a meter is full.

    A child that still runs then is killed. What the child left running is not: see `descendants`.
    """
    poll, by_fd = select.poll(), {stream.fd: stream for stream in streams}
    for stream in streams:
        os.set_blocking(stream.fd, False)
        poll.register(stream.fd, select.POLLIN)
    given = ((Over.MEMORY, memory), (Over.TIME, own_time))
    looks = [_Looks(over, meter, now() + meter.first_s) for over, meter in given if meter is not None]
    handle = _handle_of(child)
    if handle is not None:
        poll.register(handle, select.POLLIN)
    try:
        while True:
            moment = now()
            if moment >= until:
                return _kill(child, Over.WAIT)
            for look in looks:
                if look.finds_it_full(moment):
                    return _kill(child, look.over)
            wait_s = min([until, *(look.due for look in looks)]) - moment
            if handle is None:
                wait_s = min(wait_s, _TICK_S)
            for fd, _ in poll.poll(max(math.ceil(wait_s * 1000), 0)):
                if fd in by_fd and not by_fd[fd].read():
                    poll.unregister(fd)
            if _overflow(streams):
                return _kill(child, Over.OUTPUT)
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                for stream in streams:
                    while not stream.is_over and stream.read():
                        pass
                return Ending(os.waitstatus_to_exitcode(status), Over.OUTPUT if _overflow(streams) else None)
    finally:
        if handle is not None:
            os.close(handle)


@dataclass(eq=False)
class _Looks:
    """At a meter, each when it is due."""

    over: Over
    """What a full meter means."""
    meter: Meter
    due: float

    def finds_it_full(self, moment: float) -> bool:
        if moment < self.due:
            return False
        is_full, pause_s = self.meter.look(moment)
        self.due = moment + pause_s
        return is_full


def _overflow(streams: Sequence[Stream]) -> bool:
    return any(stream.is_over and stream.ends_at_most for stream in streams)


def _kill(child: int, over: Over) -> Ending:
    send_signal(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return Ending(None, over)


def _handle_of(child: int) -> int | None:
    """A descriptor that becomes readable when `child` ends, where the system has such."""
    try:
        return os.pidfd_open(child)
    except (AttributeError, OSError):
        return None
