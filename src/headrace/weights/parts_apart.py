"""Parts of a version from ranks that do not see the memory which it is written into: they send what they have to one
that does, and that one writes it.

First it is told what comes; then come the boxes, in the version's dtypes, so many at a time that they have
`BUCKET_BYTES` at most, or are one. Nobody has room for more of another's. Who sends keeps what it sent, and sends what
has changed of its own part since, bucket by bucket, where the other end has the version of then, and that is less
(`relay/deltas.py`). A bucket is a header and bytes: those of the boxes, or what changed; its checksum is of the boxes.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from headrace.config.values.dtypes import dtype_name
from headrace.weights.plane import BUCKET_BYTES, WeightError
from headrace.weights.relay.deltas import apply, changes
from headrace.weights.seen import Seen

_ALIGNED = 8
"""Bytes: of the largest number."""

Told = tuple[str, Sequence[int], Sequence[int], str, int]
"""Of a box: the tensor's name, where it begins, its shape, its dtype and its bytes."""
Box = tuple[str, Sequence[int], Tensor, torch.dtype]
"""The tensor's name, where it begins, what it holds, and the dtype of the version."""
Tensors = Mapping[str, Tensor]
_WHOLE, _CHANGES = range(2)


@dataclass(frozen=True, slots=True)
class Left:
    """What a rank has sent of a version."""

    told: Sequence[Told]
    buckets: list[Tensor]
    """Bytes of its boxes."""


@dataclass(frozen=True, slots=True)
class Came:
    """What came of a version from other ranks."""

    size: int
    """Bytes of their boxes."""
    sent: int
    """Bytes that were sent for these."""


class Peers(Protocol):
    """The ranks that write a version together. What all do, they do in one order."""

    rank: int
    """Which this one is."""

    def sees(self) -> Sequence[Seen]:
        """Where each rank is. By all."""

    def send(self, tensor: Tensor, rank: int) -> None:
        """To a rank that `receive`s it. Raises RuntimeError."""

    def receive(self, tensor: Tensor, rank: int) -> None:
        """Into `tensor`. Raises RuntimeError."""


def who_writes(seen: Sequence[Seen]) -> list[int]:
    """For each rank the one that writes what it has into memory that the first one sees: itself, where it sees that as
    well. Those who do have as many of the others each, or one more."""
    near = [rank for rank, each in enumerate(seen) if rank == 0 or seen[0].shares_memory(each)]
    away = [rank for rank in range(len(seen)) if rank not in near]
    found = list(range(len(seen)))
    for number, rank in enumerate(away):
        found[rank] = near[number % len(near)]
    return found


def send_parts(
    peers: Peers,
    rank: int,
    boxes: Sequence[Box],
    before: tuple[int, Left] | None = None,
    *,
    keeps: bool = True,
) -> Left:
    """By whom `rank` takes them from. `before`: the generation of a slot's version, and what was sent of it, which is
    of no use afterwards. `keeps`: whether the buckets are wanted. Raises RuntimeError."""
    told: list[Told] = [
        (name, list(begin), list(tensor.shape), dtype_name(dtype), tensor.numel() * dtype.itemsize)
        for name, begin, tensor, dtype in boxes
    ]
    base = before[1] if before is not None and before[1].told == told else None
    generation = before[0] if before is not None and base is not None else None
    text = torch.frombuffer(bytearray(json.dumps([told, generation]).encode()), dtype=torch.uint8)
    peers.send(torch.tensor([len(text)]), rank)
    peers.send(text, rank)
    if base is not None:
        has_it = torch.zeros(1, dtype=torch.int64)
        peers.receive(has_it, rank)
        base = base if int(has_it) else None
    left = Left(told, [] if base is None else base.buckets)
    for number, (size, bucket) in enumerate(_buckets(told)):
        buffer = _bucket(size, ((place, told[box], boxes[box][2]) for box, place in bucket))
        delta = None if base is None else changes(base.buckets[number].numpy(), buffer.numpy())
        part = buffer if delta is None else torch.frombuffer(bytearray(delta), dtype=torch.uint8)
        kind = _WHOLE if delta is None else _CHANGES
        peers.send(torch.tensor([kind, len(part), _checksum(buffer)]), rank)
        peers.send(part, rank)
        if base is not None:
            left.buckets[number] = buffer
        elif keeps:
            left.buckets.append(buffer)
    return left


def receive_parts(
    peers: Peers, rank: int, tensors: Tensors | None, of: Callable[[int], Tensors | None] = lambda generation: None
) -> Came:
    """What came from this rank, which is where it belongs in the version's `tensors`; None: it is not wanted any more.
    `of`: the tensors of another slot's version, by its generation; None of one that is not there. Whatever is wrong,
    all of it is taken. Raises WeightError, RuntimeError."""
    length = torch.zeros(1, dtype=torch.int64)
    peers.receive(length, rank)
    text = torch.empty(int(length), dtype=torch.uint8)
    peers.receive(text, rank)
    told, generation = json.loads(bytes(text.numpy()))
    into = [None if tensors is None else _box(tensors, each) for each in told]
    wrong = next((each for each, box in zip(told, into, strict=True) if box is None), None)
    fault = None if wrong is None else f"a part of {wrong[0]!r} that the version has no place for: {wrong[1:]}"
    base = None if generation is None or tensors is None or fault else of(generation)
    if generation is not None:
        peers.send(torch.tensor([int(base is not None)]), rank)
    sent = 0
    for size, bucket in _buckets(told):
        header = torch.zeros(3, dtype=torch.int64)
        peers.receive(header, rank)
        kind, length_of_part, checksum = header.tolist()
        part = torch.empty(length_of_part, dtype=torch.uint8)
        peers.receive(part, rank)
        sent += length_of_part
        if tensors is None or fault:
            continue
        try:
            buffer = part if kind == _WHOLE else _changed(part, size, bucket, told, base)
        except ValueError as error:
            fault = f"changes that are none: {error}"
            continue
        if len(buffer) != size or _checksum(buffer) != checksum:
            fault = f"bytes of {told[bucket[0][0]][0]!r} that were damaged on their way (checksum differs)"
            continue
        for number, place in bucket:
            if (box := into[number]) is not None:
                box.copy_(_view(buffer, place, told[number], box.dtype))
    if tensors is None:
        return Came(0, 0)
    if fault:
        raise WeightError(f"rank {rank} has {fault}")
    return Came(sum(size for *_, size in told), sent)


def _changed(
    part: Tensor, size: int, bucket: Sequence[tuple[int, int]], told: Sequence[Told], base: Tensors | None
) -> Tensor:
    """A bucket's bytes, from what has changed of it since the version of `base`. Raises ValueError."""
    if base is None:
        raise ValueError("nothing is there that they are to")
    old = [(place, told[number], _box(base, told[number])) for number, place in bucket]
    before = _bucket(size, ((place, each, box) for place, each, box in old if box is not None))
    buffer = torch.empty(size, dtype=torch.uint8)
    apply(part.numpy().data, before.numpy(), buffer.numpy())
    return buffer


def _bucket(size: int, boxes: Iterable[tuple[int, Told, Tensor]]) -> Tensor:
    """Its bytes [size], each box where it belongs, in the version's dtype; what is between them is 0."""
    buffer = torch.zeros(size, dtype=torch.uint8)
    for place, told, tensor in boxes:
        _view(buffer, place, told, getattr(torch, told[3])).copy_(tensor)
    return buffer


def _checksum(buffer: Tensor) -> int:
    return zlib.crc32(buffer.numpy().data)


def _box(tensors: Tensors, told: Told) -> Tensor | None:
    """Where it belongs; None if there is no such place."""
    name, begin, shape, dtype, _ = told
    whole = tensors.get(name)
    if whole is None or dtype_name(whole.dtype) != dtype or whole.dim() != len(shape):
        return None
    if any(b < 0 or b + n > size for b, n, size in zip(begin, shape, whole.shape, strict=True)):
        return None
    return whole[tuple(slice(b, b + n) for b, n in zip(begin, shape, strict=True))]


def _buckets(told: Sequence[Told]) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """The bytes of each, and which boxes are in it, each with its place."""
    bucket: list[tuple[int, int]] = []
    end = 0
    for number, (*_, size) in enumerate(told):
        if not size:
            continue
        if bucket and end + size > BUCKET_BYTES:
            yield end, bucket
            bucket, end = [], 0
        bucket.append((number, end))
        end += -(-size // _ALIGNED) * _ALIGNED
    if bucket:
        yield end, bucket


def _view(buffer: Tensor, place: int, told: Told, dtype: torch.dtype) -> Tensor:
    _, _, shape, _, size = told
    return buffer[place : place + size].view(dtype).view(tuple(shape))
