"""The bytes of a journal segment: a magic, then records of checksum, length, key, issue and payload.

All integers are little-endian: crc32 (4 bytes, over all that follows it), payload length (4), epoch, position, attempt
and issue number (8 each), payload.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headrace.store.errors import RunDamaged
from headrace.store.media.files import LOCAL, Files

AttemptKey = tuple[int, int, int]
"""(epoch, position, attempt)."""

MAGIC = b"HRJRNL02"
_CRC = struct.Struct("<I")
_BODY = struct.Struct("<Iqqqq")
HEADER_BYTES = _CRC.size + _BODY.size
MAX_PAYLOAD_BYTES = 2**32 - 1


class JournalOffset(NamedTuple):
    """Where a record is."""

    segment: int
    """One of its writer's."""
    offset: int
    """Of the record's first byte in the segment."""
    length: int
    """Bytes of the payload."""
    writer: int = 0

    @property
    def end(self) -> tuple[int, int]:
        """(segment, offset) right after the record."""
        return self.segment, self.offset + HEADER_BYTES + self.length


class Receipt(NamedTuple):
    """A group's record in the journal survives a power cut. What a writer gives, and the ledger takes."""

    key: AttemptKey
    issue: int
    """Of the attempt: which of its issues the group is of."""
    place: JournalOffset


@dataclass(frozen=True, slots=True)
class Record:
    key: AttemptKey
    issue: int
    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + HEADER_BYTES + self.length


def encode(key: AttemptKey, issue: int, payload: bytes) -> bytes:
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"a journal record holds at most {MAX_PAYLOAD_BYTES} bytes, this one has {len(payload)}")
    body = _BODY.pack(len(payload), *key, issue)
    return b"".join((_CRC.pack(zlib.crc32(payload, zlib.crc32(body))), body, payload))


def decode(data: bytes) -> tuple[AttemptKey, int, bytes] | None:
    """Key, issue number and payload of a whole record; None if its bytes are not what was written."""
    if len(data) < HEADER_BYTES:
        return None
    length, *key, issue = _BODY.unpack_from(data, _CRC.size)
    payload = data[HEADER_BYTES:]
    if len(payload) != length or _CRC.unpack_from(data)[0] != zlib.crc32(memoryview(data)[_CRC.size :]):
        return None
    return (key[0], key[1], key[2]), issue, payload


def scan(path: Path, known: Collection[int] = (), files: Files = LOCAL) -> Iterator[Record]:
    """The whole records of a segment, in order. What is damaged is passed over, to where its length says that the next
    record begins, or to one of the offsets `known`."""
    with files.open(path) as file:
        size = file.seek(0, io.SEEK_END)
        offset = len(MAGIC)
        while (found := _record_at(file, offset, size)) is not None or (
            found := _after_damage(file, offset, size, known)
        ) is not None:
            yield found
            offset = found.end


def _after_damage(file: io.BufferedIOBase, offset: int, size: int, known: Collection[int]) -> Record | None:
    """The first whole record after the damaged one at `offset`."""
    later = {place for place in known if place > offset}
    if (length := _length_at(file, offset)) is not None:
        later.add(offset + HEADER_BYTES + length)
    return next((record for place in sorted(later) if (record := _record_at(file, place, size)) is not None), None)


def _length_at(file: io.BufferedIOBase, offset: int) -> int | None:
    """Of the payload, as the header at `offset` says."""
    file.seek(offset)
    header = file.read(HEADER_BYTES)
    return _BODY.unpack_from(header, _CRC.size)[0] if len(header) == HEADER_BYTES else None


def _record_at(file: io.BufferedIOBase, offset: int, size: int) -> Record | None:
    """The record that begins there, if there is one and it is whole."""
    length = _length_at(file, offset)
    if length is None or offset + HEADER_BYTES + length > size:
        return None
    file.seek(offset)
    found = decode(file.read(HEADER_BYTES + length))
    return None if found is None else Record(found[0], found[1], offset, length)


def damaged(path: Path, offset: int) -> RunDamaged:
    return RunDamaged(
        f"{path} is damaged at byte {offset}, in a group that is not safely trained yet: put back a copy of the "
        "file, or start the run again with --fresh, which erases it"
    )
