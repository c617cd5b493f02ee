"""Digests that tell whether files of two machines are the same: of all bytes, or of samples of large files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

_WHOLE = 8 << 20
"""Bytes up to which a file of weights is read whole."""
_HEADER = 64 << 20
"""Bytes of a header at most: of the tensors of a longer one none has a sample of its own."""
_BLOCK = 16 << 10
_SPREAD = 64
"""Blocks from the first of the data to the last."""
_TENSORS = 256
"""Those of a file that have a block of their own, at most."""
_THREADS = 16
"""A sample of a file that many machines share is mostly waited for."""


def digests(whole: Iterable[str], sampled: Iterable[str]) -> Mapping[str, str]:
    """By path, of those that can be read: as `digest`, and as `sampled_digest`. Blocking."""
    asked = {**dict.fromkeys(whole, digest), **dict.fromkeys(sampled, sampled_digest)}
    if not asked:
        return {}
    with ThreadPoolExecutor(min(_THREADS, len(asked))) as threads:
        futures = {path: threads.submit(take, Path(path)) for path, take in asked.items()}
    return {path: future.result() for path, future in futures.items() if not isinstance(future.exception(), OSError)}


def digest(path: Path) -> str:
    """SHA-256 of the file, as hex. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sampled_digest(path: Path) -> str:
    """SHA-256, as hex, of a safetensors file's size, its header, and blocks of its data: a few MiB of a file of any
    size. Each tensor has a block in its middle, of many tensors those that are evenly spread; other blocks are spread
    over all the data. Small files, and those that are something else, are told apart too. Raises OSError."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        found = hashlib.sha256(size.to_bytes(8, "little"))
        if size <= _WHOLE:
            found.update(_read(file, 0, size))
            return found.hexdigest()
        header = _header(file, size)
        found.update(header)
        for place in _places(header, size):
            found.update(_read(file, place, _BLOCK))
    return found.hexdigest()


def _header(file: BinaryIO, size: int) -> bytes:
    """With the number before it, which is its length."""
    length = int.from_bytes(_read(file, 0, 8), "little")
    return _read(file, 0, 8 + (length if length <= min(size, _HEADER) else 0))


def _places(header: bytes, size: int) -> Sequence[int]:
    """Where blocks begin, in order."""
    first, last = len(header), max(size - _BLOCK, 0)
    spread = [first + (last - first) * number // (_SPREAD - 1) for number in range(_SPREAD)]
    tensors = _evenly(sorted(_tensors(header[8:])), _TENSORS)
    middles = [first + max((begin + end - _BLOCK) // 2, begin) for begin, end in tensors]
    return sorted({min(max(place, 0), last) for place in [*spread, *middles]})


def _tensors(header: bytes) -> list[tuple[int, int]]:
    """Where each begins and ends in the data; none of what is no header."""
    try:
        told = json.loads(header)
        offsets = [each["data_offsets"] for name, each in told.items() if name != "__metadata__"]
        return [(int(begin), int(end)) for begin, end in offsets]
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return []


def _evenly(found: Sequence[tuple[int, int]], most: int) -> Sequence[tuple[int, int]]:
    """`most` of them at most, with the first and the last."""
    if len(found) <= most:
        return found
    return [found[number * (len(found) - 1) // (most - 1)] for number in range(most)]


def _read(file: BinaryIO, place: int, length: int) -> bytes:
    """What is there of it."""
    file.seek(place)
    parts: list[bytes] = []
    while length > 0 and (part := file.read(length)):
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
