"""What is kept of several refs, in one frame: each as it was packed when it was put, and nothing is packed again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from headrace.runtime.process.frames import FrameError, segment_of
from headrace.runtime.process.shared_memory import Segment, read
from headrace.runtime.wire.wire_format import Parcel

_BESIDE = 128
"""Bytes of an entry beside its envelope, at most: its segment's path, say."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Columns of one ref."""

    parcel: Parcel
    """Without its buffers, if these are shared."""
    segment: Segment | None = None

    def whole(self) -> Parcel:
        """With them, mapped. Raises FileNotFoundError once it was freed."""
        return self.parcel if self.segment is None else Parcel(self.parcel.envelope, read(self.segment, take=False))


MOST = 1 << 25
"""Bytes of envelopes in one frame; whoever asks for more asks again."""


def bundled(kept: Iterable[Kept | None]) -> Parcel:
    """As many of them as go into one frame, from the first on. None for what is not kept any more."""
    parts: list[list[Any] | None] = []
    buffers: list[memoryview] = []
    size = 0
    for each in kept:
        size += 0 if each is None else len(each.parcel.envelope) + _BESIDE * (1 + len(each.parcel.buffers))
        if parts and size > MOST:
            break
        if each is None:
            parts.append(None)
            continue
        shared = None if each.segment is None else [each.segment.path, each.segment.spans]
        parts.append([each.parcel.envelope, len(each.parcel.buffers), shared])
        buffers += each.parcel.buffers
    return Parcel(msgpack.packb(parts), buffers)


def unbundled(body: Parcel, folder: Path | None) -> list[Parcel | None]:
    """What `bundled` took; None also for what was freed on the way. Segments have to be in `folder`. Raises
    FrameError."""
    try:
        found: list[Parcel | None] = []
        place = 0
        for part in msgpack.unpackb(body.envelope):
            if part is None:
                found.append(None)
                continue
            envelope, count, shared = part
            if not isinstance(envelope, bytes) or not isinstance(count, int) or not count >= 0:
                raise FrameError("what is kept has no envelope")
            if shared is None:
                found.append(Parcel(envelope, body.buffers[place : place + count]))
            else:
                found.append(_mapped(envelope, segment_of(shared[0], shared[1], folder)))
            place += count
    except (ValueError, TypeError, RecursionError) as error:
        raise FrameError(f"columns of {len(body.envelope)} bytes make no sense: {error}") from error
    if place != len(body.buffers):
        raise FrameError(f"columns have {len(body.buffers)} buffers, not {place}")
    return found


def _mapped(envelope: bytes, segment: Segment) -> Parcel | None:
    try:
        return Parcel(envelope, read(segment, take=False))
    except FileNotFoundError:
        return None
