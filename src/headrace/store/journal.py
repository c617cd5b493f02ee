"""Finished groups, in append-only segment files: the folder of all that the run's writers wrote."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from headrace.store.files import sync_path
from headrace.store.segment import HEADER_BYTES, JournalOffset, Receipt, damaged, decode, scan

_NAME = re.compile(r"(?:(\d+)-)?(\d+)\.journal")


class SegmentId(NamedTuple):
    """One file of the journal."""

    writer: int
    number: int
    """Counted from 1 by each writer."""


class Journal:
    """Reads and removes records. What writes them is a `JournalWriter`, one for each process that does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def segments(self) -> list[SegmentId]:
        """Those that are there, by writer, then by number."""
        found = (_NAME.fullmatch(path.name) for path in self._folder.glob("*.journal"))
        return sorted(SegmentId(int(name[1] or 0), int(name[2])) for name in found if name is not None)

    def end(self, writer: int) -> tuple[int, int]:
        """(segment, offset) at which a writer goes on; (0, 0) of one that has written nothing."""
        numbers = [segment.number for segment in self.segments() if segment.writer == writer]
        return (max(numbers), self.path(max(numbers), writer).stat().st_size) if numbers else (0, 0)

    @property
    def nbytes(self) -> int:
        """Of all segment files."""
        sizes = 0
        for segment in self.segments():
            with suppress(FileNotFoundError):  # it went meanwhile
                sizes += self.path(segment.number, segment.writer).stat().st_size
        return sizes

    def path(self, segment: int, writer: int = 0) -> Path:
        name = f"{segment:06d}.journal"
        return self._folder / (f"{writer}-{name}" if writer else name)

    def recover(
        self, known: Mapping[SegmentId, Collection[int]], skip: Collection[SegmentId] = ()
    ) -> Iterator[Receipt]:
        """Read every record, and cut what a crash left half written, before any writer goes on. All on disk is fsynced
        once the last receipt is given.

        `known`: for each segment, offsets at which the ledger knows that records begin or end. A record that is
        damaged is left out. `skip`: segments of which nothing is needed; never the last one of a writer.
        """
        for segment in self.segments():
            if segment in skip:
                continue
            path = self.path(segment.number, segment.writer)
            records = list(scan(path, known.get(segment, ())))
            for record in records:
                place = JournalOffset(segment.number, record.offset, record.length, segment.writer)
                yield Receipt(record.key, record.issue, place)
            if not records:
                path.unlink()
                continue
            if records[-1].end < path.stat().st_size:
                os.truncate(path, records[-1].end)
            sync_path(path)
        sync_path(self._folder)

    def read(self, place: JournalOffset) -> bytes:
        """The payload of a record. Raises RunDamaged, naming the file and the byte, if it is not what was written."""
        path = self.path(place.segment, place.writer)
        try:
            with path.open("rb", buffering=0) as file:
                data = os.pread(file.fileno(), HEADER_BYTES + place.length, place.offset)
        except FileNotFoundError:
            raise damaged(path, place.offset) from None
        found = decode(data)
        if found is None:
            raise damaged(path, place.offset)
        return found[2]

    def remove(self, segments: Iterable[SegmentId]) -> None:
        """Delete segments, none of which is written."""
        for segment in segments:
            self.path(segment.number, segment.writer).unlink(missing_ok=True)
