"""Parts of a version from ranks that do not see the memory which it is written into: they send what they have to one
that does, and that one writes it.

First it is told what comes; then come the boxes, in the version's dtypes, so many at a time that they have
`BUCKET_BYTES` at most, or are one. Nobody has room for more of another's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from headrace.config.values.dtypes import dtype_name
from headrace.weights.plane import BUCKET_BYTES, WeightError
from headrace.weights.seen import Seen

_ALIGNED = 8
"""Bytes: of the largest number."""

Told = tuple[str, Sequence[int], Sequence[int], str, int]
"""Of a box: the tensor's name, where it begins, its shape, its dtype and its bytes."""


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


def send_parts(peers: Peers, rank: int, boxes: Sequence[tuple[str, Sequence[int], Tensor, torch.dtype]]) -> None:
    """`boxes`: of each the tensor's name, where it begins, what it holds, and the dtype of the version. By whom `rank`
    takes them from. Raises RuntimeError."""
    told: list[Told] = [
        (name, begin, tensor.shape, dtype_name(dtype), tensor.numel() * dtype.itemsize)
        for name, begin, tensor, dtype in boxes
    ]
    text = torch.frombuffer(bytearray(json.dumps(told).encode()), dtype=torch.uint8)
    peers.send(torch.tensor([len(text)]), rank)
    peers.send(text, rank)
    for size, bucket in _buckets(told):
        buffer = torch.empty(size, dtype=torch.uint8)
        for number, place in bucket:
            _, _, tensor, dtype = boxes[number]
            _view(buffer, place, told[number], dtype).copy_(tensor)
        peers.send(buffer, rank)


def receive_parts(peers: Peers, rank: int, tensors: Mapping[str, Tensor] | None) -> int:
    """How many bytes came from this rank, which are where they belong in the version's `tensors`; None: they are not
    wanted any more. Whatever is wrong, all of it is taken. Raises WeightError, RuntimeError."""
    length = torch.zeros(1, dtype=torch.int64)
    peers.receive(length, rank)
    text = torch.empty(int(length), dtype=torch.uint8)
    peers.receive(text, rank)
    told: list[Told] = json.loads(bytes(text.numpy()))
    into = [None if tensors is None else _box(tensors, each) for each in told]
    for size, bucket in _buckets(told):
        buffer = torch.empty(size, dtype=torch.uint8)
        peers.receive(buffer, rank)
        for number, place in bucket:
            if (box := into[number]) is not None:
                box.copy_(_view(buffer, place, told[number], box.dtype))
    if tensors is None:
        return 0
    if wrong := next((each for each, box in zip(told, into, strict=True) if box is None), None):
        raise WeightError(f"rank {rank} has a part of {wrong[0]!r} that the version has no place for: {wrong[1:]}")
    return sum(size for *_, size in told)


def _box(tensors: Mapping[str, Tensor], told: Told) -> Tensor | None:
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
