"""Finished groups, in append-only segment files: the folder of all that the run's writers wrote."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from headrace.store.errors import write_failed
from headrace.store.media.files import LOCAL, Files
from headrace.store.segment import HEADER_BYTES, JournalOffset, Receipt, damaged, decode, scan

_NAME = re.compile(r"(?:(\d+)-)?(\d+)\.journal")


class SegmentId(NamedTuple):
    """One file of the journal."""

    writer: int
    number: int
    """Counted from 1 by each writer."""


class Journal:
    """Reads and removes records. What writes them is a `JournalWriter`, one for each process that does."""

    def __init__(self, folder: Path, files: Files = LOCAL) -> None:
        self._folder = folder
        self._files = files

    def segments(self) -> list[SegmentId]:
        """Those that are there, by writer, then by number."""
        found = (_NAME.fullmatch(path.name) for path in self._files.inside(self._folder))
        return sorted(SegmentId(int(name[1] or 0), int(name[2])) for name in found if name is not None)

    def end(self, writer: int) -> tuple[int, int]:
        """(segment, offset) at which a writer goes on; (0, 0) of one that has written nothing."""
        numbers = [segment.number for segment in self.segments() if segment.writer == writer]
        return (max(numbers), self._files.size(self.path(max(numbers), writer))) if numbers else (0, 0)

    @property
    def nbytes(self) -> int:
        """Of all segment files."""
        sizes = 0
        for segment in self.segments():
            with suppress(FileNotFoundError):  # it went meanwhile
                sizes += self._files.size(self.path(segment.number, segment.writer))
        return sizes

    def path(self, segment: int, writer: int = 0) -> Path:
        name = f"{segment:06d}.journal"
        return self._folder / (f"{writer}-{name}" if writer else name)

    def recover(
        self, known: Mapping[SegmentId, Collection[int]], skip: Collection[SegmentId] = ()
    ) -> Iterator[Receipt]:
        """Read every record, and cut what a crash left half written, before any writer goes on. All on disk is fsynced
        once the last receipt is given. Raises DiskFull, StoreError.

        `known`: for each segment, offsets at which the ledger knows that records begin or end. A record that is
        damaged is left out. `skip`: segments of which nothing is needed; never the last one of a writer that goes on.
        """
        for segment in self.segments():
            if segment in skip:
                continue
            path = self.path(segment.number, segment.writer)
            records = list(scan(path, known.get(segment, ()), self._files))
            for record in records:
                place = JournalOffset(segment.number, record.offset, record.length, segment.writer)
                yield Receipt(record.key, record.issue, place)
            self._cut(path, records[-1].end if records else 0)
        try:
            self._files.sync(self._folder)
        except OSError as error:
            raise write_failed(error, self._folder) from error

    def _cut(self, path: Path, end: int) -> None:
        try:
            if not end:
                self._files.remove(path)
                return
            if end < self._files.size(path):
                self._files.truncate(path, end)
            self._files.sync(path)
        except OSError as error:
            raise write_failed(error, path) from error

    def written(self, writer: int) -> list[Receipt]:
        """Of a writer that has ended: receipts of all whole records, which survive a power cut. Segments that are
        removed meanwhile count as removed before. Raises DiskFull, StoreError."""
        numbers = [segment.number for segment in self.segments() if segment.writer == writer]
        found: list[Receipt] = []
        for number in numbers:
            path = self.path(number, writer)
            try:
                self._files.sync(path)
                records = list(scan(path, (), self._files))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise write_failed(error, path) from error
            for record in records:
                place = JournalOffset(number, record.offset, record.length, writer)
                found.append(Receipt(record.key, record.issue, place))
        try:
            self._files.sync(self._folder)
        except OSError as error:
            raise write_failed(error, self._folder) from error
        return found

    def read(self, place: JournalOffset) -> bytes:
        """The payload of a record. Raises RunDamaged, naming the file and the byte, if it is not what was written."""
        path = self.path(place.segment, place.writer)
        try:
            data = self._files.read(path, place.offset, HEADER_BYTES + place.length)
        except FileNotFoundError:
            raise damaged(path, place.offset) from None
        found = decode(data)
        if found is None:
            raise damaged(path, place.offset)
        return found[2]

    def remove(self, segments: Iterable[SegmentId]) -> None:
        """Delete segments, none of which is written."""
        for segment in segments:
            self._files.remove(self.path(segment.number, segment.writer))
