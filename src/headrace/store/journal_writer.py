"""The end of the journal that one process writes: append-only segment files of its own."""

from __future__ import annotations

import threading
from pathlib import Path

from headrace.store.errors import IllegalTransition, StoreError, write_failed
from headrace.store.journal import Journal
from headrace.store.media.files import LOCAL, Appending, Files
from headrace.store.segment import MAGIC, AttemptKey, JournalOffset, Receipt, encode

SEGMENT_BYTES = 64 << 20


class JournalWriter:
    """Append-only records with a key, an issue number and a checksum, by one of the run's writers.

    `append` may be called while another thread is in `sync`. An appended record survives the kill of this process at
    once, and a power cut after `sync`.
    """

    def __init__(
        self, folder: Path, writer: int = 0, *, segment_bytes: int = SEGMENT_BYTES, files: Files = LOCAL
    ) -> None:
        """It goes on behind what this `writer` (its number) wrote before, which must have been recovered."""
        self._journal = Journal(folder, files)
        self._files = files
        self._folder = folder
        self._writer = writer
        self._segment_bytes = segment_bytes
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._failure: StoreError | None = None
        self._unsynced: dict[int, Appending] = {}
        """Ends of segments with writes that `sync` has not covered, by segment."""
        self._active: Appending | None = None
        """End of the segment that is written."""
        self._folder_changed = False
        self._end = self._journal.end(writer)
        self._synced = self._end

    @property
    def end(self) -> tuple[int, int]:
        """(segment, offset) that later records lie at or after."""
        with self._lock:
            return self._end

    def append(self, key: AttemptKey, payload: bytes, *, issue: int = 0) -> JournalOffset:
        """Write a record. Raises DiskFull, and then leaves the journal as it was."""
        data = encode(key, issue, payload)
        with self._lock:
            end = self._writable(len(data))
            segment, offset = self._end
            try:
                end.write(data)
            except OSError as error:
                end.truncate(offset)
                raise write_failed(error, self._path(segment)) from error
            self._end = (segment, offset + len(data))
            self._unsynced[segment] = end
            return JournalOffset(segment, offset, len(payload), self._writer)

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
                for end in pending.values():
                    end.sync()
                if folder_changed:
                    self._files.sync(self._folder)
            except OSError as error:
                # The kernel may have dropped the pages: a second fsync would succeed and mean nothing.
                self._failure = write_failed(error, self._folder)
                raise self._failure from error
            with self._lock:
                self._synced = target
                for segment, end in pending.items():
                    self._settle(segment, end, target)

    def receipt(self, key: AttemptKey, place: JournalOffset, *, issue: int = 0) -> Receipt:
        """For a record that was appended at `place`. Raises IllegalTransition unless it is synced."""
        if not self.is_synced(place):
            raise IllegalTransition(
                f"there is no receipt for attempt {key} yet: its journal record {tuple(place)} is not synced; "
                "call sync() first"
            )
        return Receipt(key, issue, place)

    def is_synced(self, place: JournalOffset) -> bool:
        with self._lock:
            return place.end <= self._synced

    def close(self) -> None:
        """Sync, and close all files."""
        try:
            self.sync()
        finally:
            with self._lock:
                active = [] if self._active is None else [self._active]
                for end in dict.fromkeys([*self._unsynced.values(), *active]):
                    end.close()
                self._unsynced.clear()
                self._active = None

    def _path(self, segment: int) -> Path:
        return self._journal.path(segment, self._writer)

    def _writable(self, size: int) -> Appending:
        """End of the segment that takes the next record of `size` bytes."""
        segment, offset = self._end
        full = offset > len(MAGIC) and offset + size > self._segment_bytes
        if self._active is not None and not full:
            return self._active
        if offset > 0 and not full:
            self._active = self._files.append(self._path(segment))
            return self._active
        return self._roll(segment + 1)

    def _roll(self, segment: int) -> Appending:
        path = self._path(segment)
        try:
            end = self._files.append(path, fresh=True)
        except OSError as error:
            raise write_failed(error, path) from error
        try:
            end.write(MAGIC)
        except OSError as error:
            end.close()
            self._files.remove(path)
            raise write_failed(error, path) from error
        left = self._active
        if left is not None and self._end[0] not in self._unsynced:
            left.close()
        self._active, self._end, self._folder_changed = end, (segment, len(MAGIC)), True
        return end

    def _settle(self, segment: int, end: Appending, target: tuple[int, int]) -> None:
        """Let go of an end if no write to its segment came after `target`, up to which all is durable."""
        if segment < target[0]:
            del self._unsynced[segment]
            end.close()
        elif self._end == target:
            del self._unsynced[segment]
