"""A version along a chain of relays: each sends a bucket on as soon as it has it, while the next one comes.

Every relay sends each byte once, so with n buckets the k-th has all of them after n + k - 1 buckets' time, and the
source's own work is the same for one receiver and for a hundred. (By a tree or a ring of broadcasts the source, or each
bucket, would be sent several times.) A bucket is a header, and bytes: of the slot as they lie there, or what changed.
The last header is the verdict: whether the source's slot was of that version until all had left.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor  # noqa: TID251 (they end within one call, on a lane)
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headrace.runtime.processors import available_processors
from headrace.runtime.progress import mark, rest
from headrace.weights.plane import WeightError
from headrace.weights.relay.deltas import apply, changes
from headrace.weights.relay.line import Line
from headrace.weights.slot_format import HEADER

BUCKET = 4 << 20
"""Bytes. In a chain the last relay waits for as many as there are before it; what a message costs besides its bytes is
a thousandth of it."""
_WHOLE, _CHANGES, _END = range(3)
_NO_SUM = -1
_MOST_PACKERS, _PROCESSORS_A_PACKER = 8, 4
"""One thread compares slower than a fast network carries."""


@dataclass(frozen=True, slots=True)
class Bucket:
    kind: int
    part: Tensor
    """Bytes [n]."""
    checksum: int
    """Of the bytes that they are, or become; `_NO_SUM` where there is none."""


def packers() -> int:
    """How many threads compare versions here: a relay leaves most processors to whoever trains beside it."""
    return max(1, min(_MOST_PACKERS, available_processors() // _PROCESSORS_A_PACKER))


def buckets(memory: Tensor, base: Tensor | None, *, summed: bool, threads: int = 1) -> Iterator[Bucket]:
    """Of a slot's bytes [n]; with those of another version, what changed, where that is less: compared by so many
    `threads`, of which each has a bucket, no more of them than that ahead."""
    places = iter(_places(memory))
    if base is None or threads == 1:
        yield from (_bucket(memory, base, place, summed=summed) for place in places)
        return
    packed: deque[Future[Bucket]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="changes")
    try:
        for place in places:
            packed.append(pool.submit(_bucket, memory, base, place, summed=summed))
            if len(packed) > threads:
                yield packed.popleft().result()
        while packed:
            yield packed.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _bucket(memory: Tensor, base: Tensor | None, place: tuple[int, int], *, summed: bool) -> Bucket:
    begin, end = place
    part = memory[begin:end]
    delta = None if base is None else changes(base[begin:end].numpy(), part.numpy())
    checksum = _checksum(part) if summed or delta is not None else _NO_SUM
    if delta is None:
        return Bucket(_WHOLE, part, checksum)
    return Bucket(_CHANGES, torch.frombuffer(bytearray(delta), dtype=torch.uint8), checksum)


def send(line: Line, to: int, parts: Iterator[Bucket], is_whole: Callable[[], bool]) -> tuple[int, bool]:
    """How many bytes left, headers apart, and the verdict. `is_whole`: whether what was sent is of one version. Raises
    PeerError."""
    sending, sent = line.sending(to), 0
    for bucket in parts:
        mark("chunk")
        sending.put(_header(bucket.kind, len(bucket.part), bucket.checksum))
        sending.put(bucket.part)
        sent += len(bucket.part)
    mark("chunk")
    sending.settle()
    verdict = is_whole()
    sending.put(_header(_END, int(verdict), _NO_SUM))
    sending.settle()
    rest()
    return sent, verdict


def take(line: Line, of: int, to: int | None, memory: Tensor, base: Tensor | None) -> bool:
    """Fill a slot's bytes [n] with what comes, and send it on. `base`: the version that changes are to. The verdict.
    Raises PeerError, and WeightError for what is damaged."""
    sending = None if to is None else line.sending(to)
    coming = line.receive(_empty_header(), of)
    for begin, end in (*_places(memory), (0, 0)):
        mark("chunk")
        header = coming.here()
        kind, length, checksum = header.view(torch.int64).tolist()
        if sending is not None:
            sending.put(header)
        if kind == _END or begin == end:
            if kind != _END or begin != end:
                raise WeightError("a relay sent more or fewer buckets than the version has")
            break
        part = _place_of(kind, length, memory[begin:end], base)
        arriving = line.receive(part, of)
        coming = line.receive(_empty_header(), of)
        arriving.here()
        if sending is not None:
            sending.put(part)
        if kind == _CHANGES:
            assert base is not None
            try:
                apply(part.numpy().data, base[begin:end].numpy(), memory[begin:end].numpy())
            except ValueError as error:
                raise WeightError(f"what changed was damaged on its way: {error}") from error
        if checksum != _NO_SUM and _checksum(memory[begin:end]) != checksum:
            raise WeightError(f"bytes {begin} to {end} were damaged on their way (checksum differs)")
    if sending is not None:
        sending.settle()
    rest()
    return bool(length)


def _places(memory: Tensor) -> Sequence[tuple[int, int]]:
    return [(begin, min(begin + BUCKET, len(memory))) for begin in range(HEADER, len(memory), BUCKET)]


def _place_of(kind: int, length: int, whole: Tensor, base: Tensor | None) -> Tensor:
    """Where a bucket's bytes go. Raises WeightError."""
    if kind == _WHOLE and length == len(whole):
        return whole
    if kind == _CHANGES and base is not None and 0 < length <= 2 * len(whole):
        return torch.empty(length, dtype=torch.uint8)
    raise WeightError(f"a relay sent a bucket of kind {kind} with {length} bytes, where {len(whole)} belong")


def _checksum(part: Tensor) -> int:
    return zlib.crc32(part.numpy().data)


def _header(*numbers: int) -> Tensor:
    return torch.from_numpy(np.array(numbers, dtype=np.int64).view(np.uint8))


def _empty_header() -> Tensor:
    return _header(0, 0, 0)
