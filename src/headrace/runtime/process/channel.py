"""One connection, by either side: values to frames and back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from headrace.runtime.event_loop import on_own_thread
from headrace.runtime.process.bundle import unbundled
from headrace.runtime.process.frames import EMPTY, IN_BAND, MOST_APART, Frame, Kind, read_frame, to_bytes
from headrace.runtime.process.shared_memory import Segment, Segments, Sent, remove
from headrace.runtime.wire.wire_format import Parcel, pack, unpack
from headrace.runtime.wire.wire_types import WireError, WireTypes

_LONG = 1 << 23
"""Bytes from which on copying is not for the event loop."""


class Channel:
    """Nothing here waits for the other side to read: how much is on its way is bounded by calls and windows."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        types: WireTypes,
        segments: Segments | None = None,
        folder: Path | None = None,
    ) -> None:
        """`segments` are written, those in `folder` read; without them the other side is on another machine, and all
        goes through the connection."""
        self._reader = reader
        self._writer = writer
        self._types = types
        self._segments = segments
        self._folder = folder
        self._sent = Sent()

    async def read(self) -> Frame | None:
        """See `read_frame`."""
        return await read_frame(self._reader, self._folder)

    def columns(self, frame: Frame) -> list[Parcel | None]:
        """See `unbundled`."""
        return unbundled(frame.body, self._folder)

    def value(self, frame: Frame, what: str) -> Any:
        """Raises WireError."""
        return unpack(frame.body, self._types, what)

    async def send(self, kind: Kind, call: int, value: Any, what: str, worker: str = "", method: str = "") -> None:
        """Raises WireError for what is no plain data; ConnectionError if the other side is gone."""
        await self.hand_over(kind, call, pack(value, self._types, what), worker, method)

    async def hand_over(self, kind: Kind, call: int, parcel: Parcel, worker: str = "", method: str = "") -> None:
        """What is packed already. Raises ConnectionError if the other side is gone; WireError for more than goes
        through a connection."""
        size, segment = sum(map(len, parcel.buffers)), None
        if self._segments is None:
            if size + len(parcel.envelope) > MOST_APART:
                raise WireError(f"{worker}.{method} has {size} bytes; {MOST_APART} may be sent at once")
        elif size > _LONG:
            segment = await self._written(parcel, self._segments)
        elif size > IN_BAND:
            segment = self._segments.write(parcel.buffers)
        if segment is not None:
            self._sent.add(segment)
        self._write(Frame(kind, call, parcel, worker, method), segment)

    async def _written(self, parcel: Parcel, segments: Segments) -> Segment:
        """Cancelled meanwhile, nothing of it stays once it is written."""
        writing = asyncio.ensure_future(on_own_thread(segments.write, parcel.buffers))
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            writing.add_done_callback(_removed)
            raise

    def tell(self, kind: Kind, call: int = 0) -> None:
        """What has no value. If the other side is gone, nothing happens."""
        if not self._writer.is_closing():
            self._write(Frame(kind, call, EMPTY), None)

    def close(self) -> None:
        self._writer.close()
        self._sent.remove()

    def _write(self, frame: Frame, segment: Segment | None) -> None:
        if self._writer.is_closing():
            raise ConnectionResetError("the connection is closed")
        self._writer.writelines(to_bytes(frame, segment))


def _removed(writing: asyncio.Future[Segment]) -> None:
    if not writing.cancelled() and writing.exception() is None:
        remove(writing.result().path)
