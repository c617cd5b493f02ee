"""Every process that comes from this one, found and ended. Imports the standard library alone, and little of it: the
guardian of each scoring process starts with this file."""

from __future__ import annotations

import contextlib
import os
import signal
import time  # noqa: TID251 (in a child, where there is no runtime)

from headrace.sandbox import linux
from headrace.sandbox.proc import read, stat_of, tasks_of

_KILLING_S = 0.5
_PARENT = 1
"""Place in a line of `stat`, behind the name."""


def descendants() -> dict[int, int]:
    """Every process that comes from this one, each with its parent; none where there is no /proc."""
    own = os.getpid()
    if not os.path.exists(f"/proc/{own}/task/{own}/children"):
        return descendants_by_parents()
    found: dict[int, int] = {}
    pending = [own]
    while pending:
        parent = pending.pop()
        with contextlib.suppress(OSError):
            for task in tasks_of(parent):
                with contextlib.suppress(OSError):
                    children = list(map(int, read(f"/proc/{parent}/task/{task}/children").split()))
                    pending += [pid for pid in children if pid not in found]
                    found |= dict.fromkeys(children, parent)
    return found


def descendants_by_parents() -> dict[int, int]:
    """As `descendants`, for kernels that do not list children; looks at every process of the machine."""
    parents = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                parents[int(name)] = int(stat_of(f"/proc/{name}/stat")[_PARENT])
    found: dict[int, int] = {}
    new = {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new and pid not in found}
        found |= {pid: parents[pid] for pid in new}
    return found


def kill_descendants() -> None:
    """End every process that comes from this one, also while they multiply: first all are stopped, then killed.

    This process must have adopted its orphans.
    """
    end = time.monotonic() + _KILLING_S
    while _has_children() and time.monotonic() < end:
        stopped: set[int] = set()
        while time.monotonic() < end:
            found = _found() - stopped
            if not found:
                break
            for pid in found:
                send_signal(pid, signal.SIGSTOP)
            stopped |= found
        for pid in stopped:
            send_signal(pid, signal.SIGKILL)


def _found() -> set[int]:
    if linux.IS_LINUX:
        return set(descendants())
    import psutil  # takes a while, and is needed only where something was left behind

    return {child.pid for child in psutil.Process().children(recursive=True)}


def _has_children() -> bool:
    """Whether there is a child left, after those that have ended are gone."""
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if not ended:
            return True


def send_signal(pid: int, number: int) -> None:
    """To a process that may have ended, or that may not be sent any."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
