"""What two processes can say to each other."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgpack

from headrace.runtime.process.shared_memory import Segment, read
from headrace.runtime.wire.wire_format import MOST_ENVELOPE, Parcel

IN_BAND = 1 << 18
"""Bytes of buffers that go through the socket; more go into shared memory."""
_LENGTHS = struct.Struct("<II")
_MOST_HEAD = 1 << 22
_MOST_BODY = MOST_ENVELOPE + IN_BAND
MOST_APART = 1 << 31
"""Bytes of a body where the two sides share no memory, and all goes through the socket."""


class Kind(StrEnum):
    """Every question has a number, by which its answer is known."""

    BUILD = "build"
    """Make the worker; body: its spec. Of the parent alone, once."""
    CALL = "call"
    """`method` of `worker`; body: arguments."""
    STREAM = "stream"
    """As CALL."""
    STOP = "stop"
    """Stop this call; it is answered all the same."""
    MORE = "more"
    """Of this stream, an item has been read."""
    FETCH = "fetch"
    """Body: a keeper, and numbers of its refs. Answered by COLUMNS."""
    FREE = "free"
    """Body: as of FETCH. Not answered."""
    LEAVE = "leave"
    """The process is to end. Not answered."""
    ANSWER = "answer"
    ITEM = "item"
    ERROR = "error"
    """Body: type, text and trace."""
    COLUMNS = "columns"
    """Body: see `bundle.py`."""
    ABSENT = "absent"
    """The worker is not here; body: why."""
    BEAT = "beat"
    """The event loop turns. To the parent."""


class FrameError(ValueError):
    """What arrived is no frame: the other side is not one of ours."""


@dataclass(frozen=True, slots=True)
class Frame:
    kind: Kind
    call: int
    body: Parcel
    worker: str = ""
    method: str = ""
    is_gone: bool = False
    """Its segment was removed before it came."""


EMPTY = Parcel(b"\xc0")
"""None."""


def to_bytes(frame: Frame, segment: Segment | None = None) -> list[bytes | memoryview]:
    """`segment` has the frame's buffers, if it is given, for this reader alone."""
    buffers: Sequence[memoryview] = frame.body.buffers if segment is None else ()
    spans = [len(buffer) for buffer in buffers] if segment is None else [list(span) for span in segment.spans]
    name = None if segment is None else segment.path
    head: bytes = msgpack.packb(
        [str(frame.kind), frame.call, frame.worker, frame.method, len(frame.body.envelope), name, spans]
    )
    body = len(frame.body.envelope) + sum(len(buffer) for buffer in buffers)
    return [_LENGTHS.pack(len(head), body), head, frame.body.envelope, *buffers]


async def read_frame(reader: asyncio.StreamReader, folder: Path | None) -> Frame | None:
    """The next frame; None at the end. Segments have to be in `folder`; without one there are none. Raises
    FrameError."""
    most = MOST_APART if folder is None else _MOST_BODY
    try:
        head_length, body_length = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        if head_length > _MOST_HEAD or body_length > most:
            raise FrameError(f"a frame of {head_length} and {body_length} bytes is too large")
        head = await reader.readexactly(head_length)
        body = await reader.readexactly(body_length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return _frame(head, memoryview(bytearray(body)), folder)


def _frame(head: bytes, body: memoryview, folder: Path | None) -> Frame:
    try:
        kind, call, worker, method, envelope, name, spans = msgpack.unpackb(head)
        if name is None:
            buffers, place = [], envelope
            for length in spans:
                buffers.append(body[place : place + length])
                place += length
            if place != len(body):
                raise FrameError(f"a frame's body has {len(body)} bytes, not {place}")
        else:
            try:
                buffers = read(segment_of(name, spans, folder), take=True)
            except FileNotFoundError:
                return Frame(Kind(kind), call, EMPTY, worker, method, is_gone=True)
        return Frame(Kind(kind), call, Parcel(bytes(body[:envelope]), buffers), worker, method)
    except (ValueError, TypeError) as error:
        raise FrameError(f"a frame's head of {len(head)} bytes makes no sense: {error}") from error


def segment_of(name: Any, spans: Any, folder: Path | None) -> Segment:
    """Of which somebody else speaks. Raises FrameError for one that is not in `folder`, or where there is none."""
    if folder is None:
        raise FrameError(f"the segment {str(name)[:100]!r} is named by another machine, whose memory is not seen here")
    if folder not in Path(name).parents or ".." in Path(name).parts:
        raise FrameError(f"the segment {str(name)[:100]!r} is not in {folder}")
    return Segment(name, tuple((offset, length) for offset, length in spans))
