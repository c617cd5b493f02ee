"""What changed between two versions, bucket by bucket, lossless.

A bucket is words of 16 bits. Of those that changed it has the distance to the one before and old XOR new, as planes of
bytes, packed by zlib as runs and Huffman codes. In bfloat16 a step at a small learning rate changes few weights, and of
those the last bits: of a model of 4.7 million weights trained with Adam 1.9 % of the words changed at a rate of 1e-6,
and what is sent is 1.2 % of the whole; at 1e-5 12 % and 5.8 %. XOR of all words, packed likewise, took 1.6 times as
much, in 1.4 times the time. In float32 every weight changes, and half of the words: that goes whole.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

MOST_CHANGED = 0.25
"""Share of the words, above which packing takes longer than it saves."""
_COUNTS = struct.Struct("<II")
_FAR = 255
"""A distance that stands elsewhere, since it is no smaller."""


def changes(old: Bytes, new: Bytes) -> bytes | None:
    """What makes `new` [n] of `old` [n], n even; None where the whole is better sent."""
    words = (old ^ new).view(np.uint16)
    count = int(np.count_nonzero(words))
    if count > MOST_CHANGED * len(words):
        return None
    at = np.flatnonzero(words)
    found = words[at]
    distances = np.diff(at, prepend=-1) - 1
    far = distances >= _FAR
    planes = [
        np.where(far, _FAR, distances).astype(np.uint8).tobytes(),
        distances[far].astype("<u4").tobytes(),
        (found & 0xFF).astype(np.uint8).tobytes(),
        (found >> 8).astype(np.uint8).tobytes(),
    ]
    packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_RLE)
    packed = b"".join([*(packer.compress(plane) for plane in planes), packer.flush()])
    return _COUNTS.pack(count, int(far.sum())) + packed


def apply(delta: memoryview | bytes, old: Bytes, into: Bytes) -> None:
    """`into` [n] becomes what `changes` was given as new. Raises ValueError for what is no delta of so many bytes."""
    try:
        count, far_count = _COUNTS.unpack_from(delta)
        size = 3 * count + 4 * far_count
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        planes = np.frombuffer(unpacker.decompress(delta[_COUNTS.size :], size or 1), np.uint8)
        if len(planes) != size or 2 * count > len(old):
            raise ValueError(f"it has {len(planes)} bytes, {size} expected")
        near, far, low, high = np.split(planes, np.cumsum([count, 4 * far_count, count]))
        distances = near.astype(np.int64)
        distances[near == _FAR] = far.view("<u4")
        at = np.cumsum(distances + 1) - 1
        if count and at[-1] >= len(old) // 2:
            raise ValueError(f"it changes word {at[-1]} of {len(old) // 2}")
    except (struct.error, zlib.error) as error:
        raise ValueError(str(error)) from error
    into[:] = old
    into.view(np.uint16)[at] ^= low | (high.astype(np.uint16) << 8)
