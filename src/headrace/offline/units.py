"""What an offline trainer trains on, and how it is cut: pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headrace.models.packing import PackRow, plan_microbatches
from headrace.training.shares import shares

Unit = Sequence[PackRow]
"""Rows that are trained in one micro-batch: a demonstration, or the two of a pair."""


def size_of(unit: Unit) -> int:
    """In tokens."""
    return sum(map(len, unit))


def trained_units(steps: int, per_batch: int, units: int) -> int:
    """How many units `steps` batches have: a single pass over the data may end with a short one."""
    total = steps * per_batch
    return units if total - units in range(1, per_batch) else total


def rows_of(units: Iterable[Unit]) -> list[PackRow]:
    return [row for unit in units for row in unit]


def micro_batches(units: Sequence[Unit], max_tokens: int) -> Iterator[list[int]]:
    """Places of the units of each micro-batch; units stay whole."""
    yield from plan_microbatches([size_of(unit) for unit in units], max_tokens)


def parts_of(units: Sequence[Unit], parts: int, max_tokens: int, *, joint: bool) -> list[list[list[int]]]:
    """Of each part of the data its micro-batches, of places in `units`: see `shares`. `joint`: all make as many passes;
    the last ones perhaps over nothing."""
    found = shares([size_of(unit) for unit in units], parts, max_tokens)
    if joint:
        most = max(map(len, found))
        found = [[*part, *([[]] * (most - len(part)))] for part in found]
    return found
