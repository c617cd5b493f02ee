"""Messages between the run and the processes that score: JSON behind a length of four bytes.

JSON, because rows come from JSON lines: every value that a row can hold goes through, whole numbers beyond
64 bits included.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

_LENGTH = struct.Struct("<I")


class FrameError(ValueError):
    """What arrived is no message; the two ends have lost each other."""


def encode_frame(message: list[Any]) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


class FrameBuffer:
    """Bytes as they arrive, to whole messages."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[list[Any]]:
        """Messages that `data` completes. Raises FrameError."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > self._max_bytes:
                raise FrameError(f"a message of {length} bytes, where {self._max_bytes} is the most")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            try:
                message = json.loads(body)
            except (ValueError, RecursionError) as error:
                raise FrameError(f"a message that is not JSON: {body[:40]!r}") from error
            if not isinstance(message, list):
                raise FrameError(f"a message that is not a list: {body[:40]!r}")
            yield message
