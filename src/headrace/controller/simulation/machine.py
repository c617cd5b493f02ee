"""The machine that a simulated run is on: what its disk takes and does wrong until it goes off, and the trace."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import sqlite3
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.store.media.memory_files import PowerCut

_TAKES_SPACE = ("write", "append", "make")
_NEEDS_NONE = ("ROLLBACK", "RELEASE", "DELETE")
"""How statements begin that go through on a full disk."""


@dataclass(frozen=True, slots=True)
class DiskCosts:
    """What a disk takes, in seconds. Only what is done on a lane is waited for."""

    sync_s: float = 0.005
    byte_s: float = 1e-9
    """Written."""


@dataclass(frozen=True, slots=True)
class DiskFaults:
    """What goes wrong with a disk, by the seconds of the clock."""

    full: tuple[tuple[float, float], ...] = ()
    """(from, to): nothing more can be written."""
    failing_syncs: tuple[tuple[float, float], ...] = ()
    """(from, to): what is synced fails."""
    slow: tuple[tuple[float, float, float], ...] = ()
    """(from, to, how many times slower)."""


class Trace:
    """What happened, with the time of each."""

    def __init__(self, now: Callable[[], float], keeps: bool) -> None:
        """`keeps`: the words too, not only their hash."""
        self.lines: list[str] = []
        self._now = now
        self._keeps = keeps
        self._hash = hashlib.sha256()

    @property
    def hash(self) -> str:
        return self._hash.hexdigest()

    def add(self, word: str, *what: Any) -> None:
        line = f"{self._now():.9f} {word} {' '.join(map(_told, what))}"
        self._hash.update(line.encode("utf-8", "backslashreplace") + b"\n")
        if self._keeps:
            self.lines.append(line)


class Machine:
    """On, until it is switched off: nothing that a process does then is done."""

    def __init__(
        self,
        now: Callable[[], float],
        trace: Trace,
        charge: Callable[[float], None],
        costs: DiskCosts,
        faults: DiskFaults,
        operations: int | None,
        took: Callable[[str], None] = lambda fault: None,
    ) -> None:
        """`charge`: see `VirtualRuntime.charge`. It goes off instead of one more than so many `operations` of the
        store. `took`: told of each fault of the disk that took effect."""
        self._took = took
        self.off = asyncio.Event()
        self._now = now
        self._trace = trace
        self._charge = charge
        self._costs = costs
        self._faults = faults
        self._left = operations

    def switch_off(self) -> None:
        self.off.set()

    def told(self, operation: str, path: Path, what: object) -> None:
        """By files, as their `Watch`."""
        if self.off.is_set():
            raise PowerCut
        if operation == "read":
            return
        if self._left == 0:
            self.switch_off()
            raise PowerCut
        if self._left is not None:
            self._left -= 1
        self._trace.add(operation, path.name, what)
        self._fail(operation, path, what)
        self._charge_for(operation, what)

    def heard(self, word: str, what: object) -> None:
        """Of models."""
        if not self.off.is_set():
            self._trace.add(word, what)

    def _fail(self, operation: str, path: Path, what: object) -> None:
        if self._within(self._faults.full):
            if operation in _TAKES_SPACE:
                self._took("disk full")
                raise OSError(errno.ENOSPC, "no space left on device (a fault of the simulation)", str(path))
            if operation == "sql" and not (isinstance(what, tuple) and str(what[0]).startswith(_NEEDS_NONE)):
                self._took("disk full")
                error = sqlite3.OperationalError("database or disk is full (a fault of the simulation)")
                error.sqlite_errorcode = sqlite3.SQLITE_FULL
                raise error
        if operation == "sync" and self._within(self._faults.failing_syncs):
            self._took("sync failed")
            raise OSError(errno.EIO, "input/output error (a fault of the simulation)", str(path))

    def _charge_for(self, operation: str, what: object) -> None:
        seconds = len(what) * self._costs.byte_s if isinstance(what, bytes) else 0.0
        seconds += self._costs.sync_s if operation == "sync" else 0.0
        if seconds:
            now = self._now()
            slower = next((t for begin, end, t in self._faults.slow if begin <= now < end), 1.0)
            if slower > 1.0:
                self._took("disk slow")
            self._charge(seconds * slower)

    def _within(self, times: tuple[tuple[float, float], ...]) -> bool:
        return bool(times) and any(begin <= self._now() < end for begin, end in times)


def _told(what: object) -> str:
    if isinstance(what, bytes):
        return f"{len(what)} bytes {zlib.crc32(what):08x}"
    return str(what)
