"""Shared memory: files of a folder that lies in memory, mapped by whoever reads them."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

_ALIGNED = 64
"""Bytes: buffers begin at multiples, as vector instructions like them."""
_LOOK_AFTER = 64


@dataclass(frozen=True, slots=True)
class Segment:
    """Buffers in shared memory."""

    path: str
    spans: tuple[tuple[int, int], ...]
    """Offset and bytes of each."""


class Segments:
    """Those of one writer, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._numbers = count()

    def write(self, buffers: Sequence[memoryview]) -> Segment:
        """A copy of the buffers, in a segment of their own."""
        path = self._folder / str(next(self._numbers))
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            spans, offset = [], 0
            for buffer in buffers:
                spans.append((offset, len(buffer)))
                written = 0
                while written < len(buffer):
                    written += os.pwrite(descriptor, buffer[written:], offset + written)
                offset += -(-len(buffer) // _ALIGNED) * _ALIGNED
        except BaseException as error:
            os.unlink(path)
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise self._full(buffers) from error
            raise
        finally:
            os.close(descriptor)
        return Segment(str(path), tuple(spans))

    def _full(self, buffers: Sequence[memoryview]) -> OSError:
        free, size = shutil.disk_usage(self._folder).free, sum(map(len, buffers))
        return OSError(
            errno.ENOSPC,
            f"{size} bytes do not fit into shared memory, where {free} are free: give it more (a "
            "container's --shm-size, or mount -o remount,size=), or let less run ahead (async.ahead, async.table_gib)",
            str(self._folder),
        )


class Sent:
    """Segments on their way: whoever receives one removes it, and whoever sent it those that nobody received."""

    def __init__(self) -> None:
        self._paths: list[str] = []

    def add(self, segment: Segment) -> None:
        self._paths.append(segment.path)
        if len(self._paths) % _LOOK_AFTER == 0:
            self._paths = [path for path in self._paths if os.path.exists(path)]

    def remove(self) -> None:
        for path in self._paths:
            remove(path)
        self._paths = []


def read(segment: Segment, *, take: bool) -> list[memoryview]:
    """The buffers, mapped: nothing is copied but the pages that the reader writes to, which nobody else sees. `take`:
    remove it; the mapping stays. Raises FileNotFoundError if it is gone."""
    descriptor = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if take:
            os.unlink(segment.path)
        size = os.fstat(descriptor).st_size
        if any(offset < 0 or length < 0 or offset + length > size for offset, length in segment.spans):
            raise ValueError(f"the segment {segment.path} has {size} bytes, fewer than its buffers")
        whole = memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)) if size else memoryview(bytearray())
    finally:
        os.close(descriptor)
    return [whole[offset : offset + length] for offset, length in segment.spans]


def remove(path: str) -> None:
    """Of one that is gone, nothing happens."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
