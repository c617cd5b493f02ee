"""The wire codec: plain data to bytes and back, for what crosses between processes.

None, bools, ints, floats, text, bytes, lists, tuples, dicts with text or int keys, numpy arrays of plain dtypes, and
the types of a registry (`WireTypes`). The envelope is msgpack; arrays and bytes of `LARGE` bytes and more lie beside
it, so that they can be handed over without a copy. What is no type of msgpack is a map whose only key is nil, which is
no dict of this codec. A list of values of one type of ours goes field by field, and a field in which all have the same
once: messages are full of refs and headers. Decoding trusts nothing: it looks up names and dtypes, and imports and runs
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from headrace.runtime.wire.wire_reader import Map, Reader
from headrace.runtime.wire.wire_types import WireError, WireTypes
from headrace.runtime.wire.wire_writer import Writer

MOST_ENVELOPE = 1 << 28
"""Bytes."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A value on its way."""

    envelope: bytes
    buffers: Sequence[memoryview] = ()
    """Of bytes. Of what was packed: its memory, not copies of it."""


def pack(value: Any, types: WireTypes, what: str = "the value") -> Parcel:
    """Raises WireError for what is no plain data; places in messages begin with `what`."""
    writer = Writer(types)
    try:
        writer.write(value, what, 0)
    except UnicodeEncodeError as error:
        raise WireError(f"{what} has text that is none: {error}") from error
    envelope = writer.packer.bytes()
    if len(envelope) > MOST_ENVELOPE:
        raise WireError(
            f"{what} takes {len(envelope)} bytes beside its arrays; {MOST_ENVELOPE} may be sent at once: give it in "
            "pieces, or as arrays"
        )
    return Parcel(envelope, writer.buffers)


def unpack(parcel: Parcel, types: WireTypes, what: str = "a message") -> Any:
    """Inverse of `pack`. Small arrays are fresh and writable; those that lay beside the envelope are views of their
    buffers, and writable where these are. Raises WireError."""
    if len(parcel.envelope) > MOST_ENVELOPE:
        raise WireError(f"{what} has {len(parcel.envelope)} bytes; {MOST_ENVELOPE} may be sent at once")
    try:
        unpacked = msgpack.unpackb(
            parcel.envelope, unicode_errors="surrogatepass", strict_map_key=False, object_pairs_hook=Map, use_list=True
        )
    except (ValueError, TypeError, RecursionError, OverflowError) as error:  # msgpack's own errors are ValueErrors
        raise WireError(f"{what} of {len(parcel.envelope)} bytes is not msgpack: {error}") from error
    reader = Reader(types, parcel.buffers)
    value = reader.read(unpacked, what, 0)
    if reader.taken != len(parcel.buffers):
        raise WireError(f"{what} has {len(parcel.buffers)} buffers and names {reader.taken}")
    return value


def copied(value: Any, types: WireTypes, what: str) -> Any:
    """`value` after a journey: no part of it is shared. Raises WireError for what is no plain data."""
    parcel = pack(value, types, what)
    buffers = [memoryview(bytearray(buffer)) for buffer in parcel.buffers]
    return unpack(Parcel(parcel.envelope, buffers), types, what)
