"""How two processes that have the same token know each other over a connection, which nobody else can listen in on the
token by, or answer for one of them.

Each proves by a message authentication code over numbers that both have drawn for this connection. What follows is
neither encrypted nor authenticated.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_NUMBER = 32
"""Bytes that each side draws."""
_CODE = hashlib.sha256().digest_size
_LENGTH = struct.Struct("<H")
_MOST_TOLD = 4096
"""Bytes that who comes says of itself."""
_SECONDS = 10.0
"""In which either side has said what the other waits for."""


class NotOurs(ConnectionError):
    """The other side does not have the token, or is not one of ours."""


async def let_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes) -> bytes:
    """As the one that listens: what the other says of itself. Raises NotOurs."""
    async with _in_time(_SECONDS):
        theirs, own = await reader.readexactly(_NUMBER), secrets.token_bytes(_NUMBER)
        writer.write(own + _code(token, b"listens", theirs, own))
        code = await reader.readexactly(_CODE)
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        told = await reader.readexactly(length) if length <= _MOST_TOLD else b""
    if length > _MOST_TOLD:
        raise NotOurs(f"it has {length} bytes to say of itself, more than {_MOST_TOLD}")
    if not hmac.compare_digest(code, _code(token, b"comes", own, theirs, told)):
        raise NotOurs("it does not have the token")
    return told


async def come_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes, told: bytes) -> None:
    """As the one that has connected. `told`: what it says of itself, 4096 bytes at most. Raises NotOurs."""
    own = secrets.token_bytes(_NUMBER)
    async with _in_time(_SECONDS):
        writer.write(own)
        theirs, code = await reader.readexactly(_NUMBER), await reader.readexactly(_CODE)
    if not hmac.compare_digest(code, _code(token, b"listens", own, theirs)):
        raise NotOurs("it does not have the token")
    async with _in_time(_SECONDS):
        writer.write(_code(token, b"comes", theirs, own, told) + _LENGTH.pack(len(told)) + told)
        await writer.drain()


@asynccontextmanager
async def _in_time(seconds: float) -> AsyncIterator[None]:
    """Raises NotOurs where the connection ends, or is silent for so long."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except (TimeoutError, asyncio.IncompleteReadError, OSError) as error:
        raise NotOurs(f"it did not say what it is to say: {error!r}") from error


def _code(token: bytes, *parts: bytes) -> bytes:
    """Each part but the last has a fixed length, so that no two lists of them make the same text."""
    return hmac.digest(token, b"headrace rank " + b"".join(parts), "sha256")
