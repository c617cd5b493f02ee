"""The C library's heap, which keeps what was freed: tensors of many sizes leave it in pieces that few of the next fit.

Of a model of 10 M parameters that trains on a CPU it had five times of what was in use, and grew on.
"""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable
from functools import cache
from pathlib import Path

_LEAST = 1 << 30
"""Resident bytes below which nothing is done."""
_GROWN = 2.5
"""So many times what was left the last time: giving pages back, and having them again, takes some 0.3 s a GB."""


class Heap:
    def __init__(self, resident: Callable[[], int], trim: Callable[[], object] | None) -> None:
        """`resident`: bytes that the process has in memory. `trim`: gives back whole pages that hold nothing; None
        where the C library has no such call."""
        self._resident = resident
        self._trim = trim
        self._left = 0

    def give_back(self) -> bool:
        """At a moment when little is in use: what holds nothing, if the process has grown much since. Whether it did.
        Blocking."""
        if self._trim is None or self._resident() < max(_LEAST, int(_GROWN * self._left)):
            return False
        self._trim()
        self._left = self._resident()
        return True


@cache
def own_heap() -> Heap:
    """That of this process."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    return Heap(resident_bytes, None if trim is None else lambda: trim(0))


def resident_bytes() -> int:
    """Of this process; 0 where that cannot be told."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
