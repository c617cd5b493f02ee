"""How a version lies in memory that processes share: see `shm.py`. For those who read it without torch."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from headrace.weights.plane import TensorEntry, WeightError
from headrace.weights.version import Version

SLOTS = 2
LAYOUT = "layout.json"
HEADER = 4096
"""Bytes before the tensors of a slot: generation, branch, number, checksum and whether there is a swap check, 8 bytes
each."""
NONE = -1
"""The checksum where there is no need of one."""
_ALIGNED = 64
_NUMBERS = "=5q"


class SlotHead(NamedTuple):
    """What a slot says of itself, once it is whole."""

    generation: int
    version: Version
    has_check: bool


def slot_name(number: int) -> str:
    return f"slot-{number}"


def check_file(folder: Path, generation: int) -> Path:
    """The swap check of the version that a slot had in this generation."""
    return folder / f"check-{generation}.json"


def whole_slots(folder: Path) -> list[SlotHead]:
    """Those that have a version, the newest one first. Raises OSError."""
    found = []
    for number in range(SLOTS):
        descriptor = os.open(folder / slot_name(number), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            told = os.pread(descriptor, struct.calcsize(_NUMBERS), 0)
        finally:
            os.close(descriptor)
        generation, branch, version, _, has_check = struct.unpack(_NUMBERS, told)
        if generation > 0 and generation % 2 == 0:
            found.append(SlotHead(generation, Version(branch, version), bool(has_check)))
    return sorted(found, reverse=True)


def places(entries: Iterable[TensorEntry]) -> tuple[list[tuple[TensorEntry, int]], int]:
    """Where each tensor begins, and how long a slot is."""
    found, end = [], HEADER
    for entry in entries:
        found.append((entry, end))
        end += -(-entry.size // _ALIGNED) * _ALIGNED
    return found, end


@contextmanager
def slot_of(folder: Path, version: Version) -> Iterator[mmap.mmap]:
    """The slot that has the version. Raises OSError, and WeightError where none has it, or it was overtaken by the end
    of the block."""
    for number in range(SLOTS):
        descriptor = os.open(folder / slot_name(number), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        generation, *held = numbers_of(mapped)[:3]
        if generation > 0 and generation % 2 == 0 and tuple(held) == version:
            yield mapped
            if numbers_of(mapped)[0] != generation:
                break
            return
    raise WeightError(f"{version} is not whole in {folder} any more: a newer one was published")


def numbers_of(slot: mmap.mmap) -> tuple[int, ...]:
    """Generation, branch, number, checksum."""
    return tuple(memoryview(slot)[:32].cast("q"))
