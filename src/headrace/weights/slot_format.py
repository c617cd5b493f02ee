"""How a version lies in memory that processes share: see `shm.py`. For those who read it without torch."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.weights.plane import TensorEntry

SLOTS = 2
LAYOUT = "layout.json"
HEADER = 4096
"""Bytes before the tensors of a slot: generation, branch, number, checksum and whether there is a swap check, 8 bytes
each."""
NONE = -1
"""The checksum where there is no need of one."""
_ALIGNED = 64


def slot_name(number: int) -> str:
    return f"slot-{number}"


def places(entries: Iterable[TensorEntry]) -> tuple[list[tuple[TensorEntry, int]], int]:
    """Where each tensor begins, and how long a slot is."""
    found, end = [], HEADER
    for entry in entries:
        found.append((entry, end))
        end += -(-entry.size // _ALIGNED) * _ALIGNED
    return found, end
