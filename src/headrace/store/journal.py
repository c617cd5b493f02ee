"""Finished groups, in append-only segment files."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from headrace.store.errors import StoreError, write_failed
from headrace.store.files import sync_path
from headrace.store.segment import (
    HEADER_BYTES,
    MAGIC,
    AttemptKey,
    JournalOffset,
    damaged,
    decode,
    encode,
    scan,
)

SEGMENT_BYTES = 64 << 20
_SUFFIX = ".journal"


class Journal:
    """Append-only records with a key and a checksum.

    `append` and `read` may be called while another thread is in `sync`. An appended record survives the kill of
    this process at once, and a power cut after `sync`.
    """

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._failure: StoreError | None = None
        self._unsynced: dict[int, int] = {}
        """Descriptors of segments with writes that `sync` has not covered, by segment."""
        self._active: int | None = None
        """Descriptor of the segment that is written."""
        self._folder_changed = False
        self._end = (max(self.segments(), default=0), 0)
        self._synced = self._end

    @property
    def end(self) -> tuple[int, int]:
        """(segment, offset) that later records lie at or after."""
        with self._lock:
            return self._end

    def segments(self) -> list[int]:
        """Numbers of the segment files that are there, ascending."""
        names = [path.stem for path in self._folder.glob(f"*{_SUFFIX}")]
        return sorted(int(name) for name in names if name.isdecimal())

    @property
    def nbytes(self) -> int:
        """Of all segment files."""
        sizes = 0
        for segment in self.segments():
            with suppress(FileNotFoundError):  # it went meanwhile
                sizes += self.path(segment).stat().st_size
        return sizes

    def path(self, segment: int) -> Path:
        return self._folder / f"{segment:06d}{_SUFFIX}"

    def recover(
        self, known: Mapping[int, Collection[int]], skip: Collection[int] = ()
    ) -> list[tuple[AttemptKey, JournalOffset]]:
        """Read every record, cut what a crash left half written, and be ready to append. All on disk is fsynced.

        `known`: for each segment, offsets at which the ledger knows that records begin or end. A record that is
        damaged is left out of what is returned. `skip`: segments of which nothing is needed; never the last one.
        """
        found: list[tuple[AttemptKey, JournalOffset]] = []
        for segment in self.segments():
            if segment in skip:
                continue
            path = self.path(segment)
            records = list(scan(path, known.get(segment, ())))
            whole = records[-1].end if records else 0
            found += [(record.key, JournalOffset(segment, record.offset, record.length)) for record in records]
            if not records:
                path.unlink()
                continue
            if whole < path.stat().st_size:
                os.truncate(path, whole)
            sync_path(path)
            self._end = (segment, whole)
        sync_path(self._folder)
        self._synced = self._end
        return found

    def append(self, key: AttemptKey, payload: bytes) -> JournalOffset:
        """Write a record. Raises DiskFull, and then leaves the journal as it was."""
        data = encode(key, payload)
        with self._lock:
            descriptor = self._writable(len(data))
            segment, offset = self._end
            try:
                _write_all(descriptor, data)
            except OSError as error:
                os.ftruncate(descriptor, offset)
                raise write_failed(error, self.path(segment)) from error
            self._end = (segment, offset + len(data))
            self._unsynced[segment] = descriptor
            return JournalOffset(segment, offset, len(payload))

    def sync(self) -> None:
        """Make every record appended so far survive a power cut. Callers that wait together share one fsync.

        Raises DiskFull or StoreError; after that the journal cannot be trusted, and every later sync raises too.
        """
        wanted = self.end
        with self._sync_lock:
            if self._failure is not None:
                raise self._failure
            if self._synced >= wanted:
                return
            with self._lock:
                target, pending, folder_changed = self._end, dict(self._unsynced), self._folder_changed
                self._folder_changed = False
            try:
                for descriptor in pending.values():
                    os.fsync(descriptor)
                if folder_changed:
                    sync_path(self._folder)
            except OSError as error:
                # The kernel may have dropped the pages: a second fsync would succeed and mean nothing.
                self._failure = write_failed(error, self._folder)
                raise self._failure from error
            with self._lock:
                self._synced = target
                for segment, descriptor in pending.items():
                    self._settle(segment, descriptor, target)

    def is_synced(self, offset: JournalOffset) -> bool:
        with self._lock:
            return offset.end <= self._synced

    def read(self, offset: JournalOffset) -> bytes:
        """The payload of a record. Raises RunDamaged, naming the file and the byte, if it is not what was written."""
        path = self.path(offset.segment)
        try:
            with path.open("rb", buffering=0) as file:
                data = os.pread(file.fileno(), HEADER_BYTES + offset.length, offset.offset)
        except FileNotFoundError:
            raise damaged(path, offset.offset) from None
        found = decode(data)
        if found is None:
            raise damaged(path, offset.offset)
        return found[1]

    def remove(self, segments: Iterable[int]) -> None:
        """Delete segments; the one that is written stays."""
        with self._lock:
            for segment in segments:
                if segment != self._end[0]:
                    self.path(segment).unlink(missing_ok=True)

    def close(self) -> None:
        """Sync, and close all files."""
        try:
            self.sync()
        finally:
            with self._lock:
                for descriptor in {*self._unsynced.values(), *([] if self._active is None else [self._active])}:
                    os.close(descriptor)
                self._unsynced.clear()
                self._active = None

    def _writable(self, size: int) -> int:
        """Descriptor of the segment that takes the next record of `size` bytes."""
        segment, offset = self._end
        full = offset > len(MAGIC) and offset + size > self._segment_bytes
        if self._active is not None and not full:
            return self._active
        if offset > 0 and not full:
            self._active = os.open(self.path(segment), os.O_WRONLY | os.O_APPEND)
            return self._active
        return self._roll(segment + 1)

    def _roll(self, segment: int) -> int:
        path = self.path(segment)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError as error:
            raise write_failed(error, path) from error
        try:
            _write_all(descriptor, MAGIC)
        except OSError as error:
            os.close(descriptor)
            path.unlink()
            raise write_failed(error, path) from error
        left = self._active
        if left is not None and self._end[0] not in self._unsynced:
            os.close(left)
        self._active, self._end, self._folder_changed = descriptor, (segment, len(MAGIC)), True
        return descriptor

    def _settle(self, segment: int, descriptor: int, target: tuple[int, int]) -> None:
        """Let go of a descriptor if no write to its segment came after `target`, up to which all is durable."""
        if segment < target[0]:
            del self._unsynced[segment]
            os.close(descriptor)
        elif self._end == target:
            del self._unsynced[segment]


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
