"""A version that several processes write into one slot, each the parts of tensors that it has, and what it is sent by
those who do not see the slot's memory (`parts_apart.py`).

The publisher begins a slot, whose generation is odd from then on; the others write into it; the publisher ends it once
all have told how many bytes they wrote, and these are all that there are. Nobody has more of a version than its own
part. Whoever is killed meanwhile leaves a slot that nobody takes anything from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from headrace.weights.copies import copy_each
from headrace.weights.parts_apart import Box, Came, Left, Peers, receive_parts, send_parts, who_writes
from headrace.weights.plane import Manifest, WeightError
from headrace.weights.shm import slots_in
from headrace.weights.slots import Slot, settle


@dataclass(frozen=True, slots=True)
class OpenSlot:
    """One that is being written. Plain data."""

    address: str
    """Of its publisher, in memory that processes share."""
    generation: int


@dataclass(frozen=True, slots=True)
class Part:
    """Of a tensor: the box that begins at `begin` and is as large as `tensor`, which may be of another dtype."""

    name: str
    begin: tuple[int, ...]
    tensor: Tensor
    dtype: torch.dtype | None = None
    """Of the version: that of `tensor` unless given."""


class PartWriter:
    """What it has mapped stays mapped, of one publisher at a time."""

    def __init__(self, peers: Peers | None = None, *, deltas: bool = True) -> None:
        """`peers`: with whom it writes, if some of them may not see what is written into; made by all of them.
        `deltas`: whether what is sent is what has changed, where that is less. Raises RuntimeError."""
        self._address = ""
        self._slots: list[Slot] = []
        self._peers = peers
        self._writes = who_writes([] if peers is None else peers.sees())
        self._deltas = deltas
        self._left: tuple[str, int, Left] | None = None
        """What it has sent last: to which address, of which generation."""
        self.came = Came(0, 0)
        """Of the last version, from others."""

    def write(self, opened: OpenSlot, parts: Iterable[Part]) -> int:
        """How many bytes of the version this one has written, its own and those that it was sent; converted to its
        dtypes. Where it does not see the slot's memory it sends them, to be written. By all. Blocking. Raises
        WeightError if the slot is not that one, or is not any more; RuntimeError where another is lost."""
        self.came = Came(0, 0)
        if (peers := self._peers) is None:
            return self._written(self._found(opened), opened, parts)
        own, by = peers.rank, self._writes[peers.rank]
        if by != own:
            self._sent(peers, by, opened, [(each.name, each.begin, each.tensor, _dtype(each)) for each in parts])
            return 0
        sent_by = [rank for rank, writer in enumerate(self._writes) if writer == own != rank]
        try:
            slot = self._found(opened)
            written = self._written(slot, opened, parts)
        except WeightError:
            self._taken(peers, sent_by, None)  # they would wait
            raise
        self.came = self._taken(peers, sent_by, slot)
        written += self.came.size
        if slot.generation != opened.generation:
            raise _closed(opened)
        return written

    def _sent(self, peers: Peers, rank: int, opened: OpenSlot, boxes: Sequence[Box]) -> None:
        """To the one that writes for it: what has changed, if that has what was sent last as a whole version."""
        before, self._left = self._left, None
        known = before is not None and before[0] == opened.address
        base = before[1:] if before is not None and known else None
        left = send_parts(peers, rank, boxes, base, keeps=self._deltas)
        if self._deltas:
            self._left = opened.address, opened.generation + 1, left  # once it is whole

    def _taken(self, peers: Peers, ranks: Sequence[int], slot: Slot | None) -> Came:
        """What came from these, in the slot if there is one. From all, whatever one has. Raises WeightError."""
        size, sent, fault = 0, 0, None
        for rank in ranks:
            try:
                came = receive_parts(peers, rank, None if slot is None or fault else slot.tensors, self._whole)
            except WeightError as error:
                fault = error
            else:
                size, sent = size + came.size, sent + came.sent
        if fault is not None:
            raise fault
        return Came(size, sent)

    def _whole(self, generation: int) -> Mapping[str, Tensor] | None:
        """Of the version that a slot has in this generation."""
        return next((slot.tensors for slot in self._slots if slot.generation == generation), None)

    def _found(self, opened: OpenSlot) -> Slot:
        """Raises WeightError."""
        if self._address != opened.address:
            try:
                self._slots = slots_in(Path(opened.address))
            except (OSError, ValueError) as error:
                raise WeightError(
                    f"{opened.address} cannot be written: {error}; place all ranks of one model where they see the "
                    "same memory"
                ) from error
            self._address = opened.address
        slot = next((slot for slot in self._slots if slot.generation == opened.generation), None)
        if slot is None:
            raise _closed(opened)
        return slot

    def _written(self, slot: Slot, opened: OpenSlot, parts: Iterable[Part]) -> int:
        """Its own bytes. Raises WeightError."""
        pairs = [(_box(slot, part), part.tensor) for part in parts]
        copy_each(pairs)
        settle(tensor for _, tensor in pairs)
        if slot.generation != opened.generation:
            raise _closed(opened)
        return sum(box.numel() * box.element_size() for box, _ in pairs)


def require_all(manifest: Manifest, written: int) -> None:
    """`written`: bytes, by all. Raises WeightError."""
    size = sum(entry.size for entry in manifest.entries)
    if written != size:
        raise WeightError(
            f"{manifest.version} has {size} bytes, and those who have parts of it wrote {written}; it is not offered"
        )


def _box(slot: Slot, part: Part) -> Tensor:
    whole = slot.tensors[part.name]
    return whole[tuple(slice(begin, begin + size) for begin, size in zip(part.begin, part.tensor.shape, strict=True))]


def _dtype(part: Part) -> torch.dtype:
    return part.tensor.dtype if part.dtype is None else part.dtype


def _closed(opened: OpenSlot) -> WeightError:
    return WeightError(f"no slot in {opened.address} is written as generation {opened.generation}; publish again")
