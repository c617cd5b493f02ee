"""One process of this machine, and no other that has its number later, or elsewhere: in another container."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

_STARTED = 19
"""Of /proc/PID/stat, the field behind the name at which the kernel says when it began, in ticks since the boot."""

_ZOMBIE = "Z"


@dataclass(frozen=True, slots=True)
class ProcessId:
    pid: int
    began: int
    """Ticks since the machine's boot."""

    @classmethod
    def own(cls) -> ProcessId | None:
        """None where the kernel does not say when processes began."""
        began = _began(os.getpid())
        return None if began is None else cls(os.getpid(), began)

    @property
    def is_there(self) -> bool:
        """Also as a zombie, until it is waited for."""
        return _began(self.pid) == self.began

    @property
    def runs(self) -> bool:
        """Not as a zombie: whoever is to wait for it may do that late."""
        found = _fields(self.pid)
        return found is not None and found[0] != _ZOMBIE and found[_STARTED] == str(self.began)

    def kill(self) -> None:
        """At once, if it is there."""
        if self.is_there:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)


def _began(pid: int) -> int | None:
    found = _fields(pid)
    return None if found is None else int(found[_STARTED])


def _fields(pid: int) -> list[str] | None:
    """Of /proc/PID/stat, behind the name; None where there is no such process, or the kernel does not say."""
    try:
        found = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return found if len(found) > _STARTED else None
