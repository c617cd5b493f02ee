"""Memory of this process in few large pages, so that a fork has few to copy.

A fork copies an entry for each page of private memory, and its end drops each again: with torch loaded these are
40,000. Of memory in pages of 2 MiB there is one entry for 512 of those; of such a page either side gets a copy of the
4 KiB alone that it writes to.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

HUGE_BYTES = 2 << 20
_COLLAPSE = 25
"""MADV_COLLAPSE (madvise(2), Linux 6.1)."""
_FULL = 0.5
"""Of a mapping at least so much is in use: else memory would be taken that nothing needs, as at stacks of threads."""
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p [0-9a-f]+ [0-9a-f:]+ 0 *(?:\[heap\])?$")
_IN_USE = "Anonymous:"


def collapse() -> int:
    """Put what this process has of memory of its own into huge pages, where the kernel does so; how many there are."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    try:
        told = Path("/proc/self/smaps").read_text()
    except OSError:
        return 0
    places = [place for start, end in well_used(told) for place in _whole(start, end)]
    return sum(libc.madvise(place, HUGE_BYTES, _COLLAPSE) == 0 for place in places)


def well_used(smaps: str) -> Iterator[tuple[int, int]]:
    """Start and end of each private, writable mapping without a file that is in use, of `smaps` as in proc(5)."""
    start = end = 0
    for line in smaps.splitlines():
        if found := _MAPPING.match(line):
            start, end = int(found[1], 16), int(found[2], 16)
        elif not line[:1].isupper():  # another mapping
            start = end = 0
        elif line.startswith(_IN_USE) and end > start and int(line.split()[1]) << 10 >= _FULL * (end - start):
            yield start, end


def _whole(start: int, end: int) -> range:
    """Where in a mapping huge pages can be."""
    return range(-(-start // HUGE_BYTES) * HUGE_BYTES, end // HUGE_BYTES * HUGE_BYTES, HUGE_BYTES)
