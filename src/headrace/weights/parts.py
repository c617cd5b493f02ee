"""A version that several processes of a machine write into one slot, each the parts of tensors that it has.

The publisher begins a slot, whose generation is odd from then on; the others write into it; the publisher ends it once
all have told how many bytes they wrote, and these are all that there are. Nobody has more of a version than its own
part. Whoever is killed meanwhile leaves a slot that nobody takes anything from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from headrace.weights.copies import copy_each
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


class PartWriter:
    """What it has mapped stays mapped, of one publisher at a time."""

    def __init__(self) -> None:
        self._address = ""
        self._slots: list[Slot] = []

    def write(self, opened: OpenSlot, parts: Iterable[Part]) -> int:
        """How many bytes of the version these are; converted to its dtypes. Blocking. Raises WeightError if the slot
        is not that one, or is not any more."""
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


def _closed(opened: OpenSlot) -> WeightError:
    return WeightError(f"no slot in {opened.address} is written as generation {opened.generation}; publish again")
