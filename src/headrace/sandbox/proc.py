"""Files of /proc (proc(5)). Imports the standard library alone, and little of it."""

from __future__ import annotations

import os

_AT_ONCE = 1 << 16


def tasks_of(pid: int) -> list[str]:
    """The numbers of its threads. Raises OSError once it has ended."""
    return os.listdir(f"/proc/{pid}/task")


def stat_of(path: str) -> list[bytes]:
    """The fields of a file `stat` that follow the name, which may hold anything. Raises OSError."""
    return read(path).rpartition(b")")[2].split()


def read(path: str) -> bytes:
    """Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(descriptor, _AT_ONCE):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)
