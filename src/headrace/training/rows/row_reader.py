"""How a rank comes by the arrays of its rows: by ref, for itself; or, where ranks on one machine are given the same
rows, one of them reads, and broadcasts what it has packed.

What goes from rank to rank is in the wire format: its envelope, and the arrays as they lie in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.kept_sets import KeptSets
from headrace.experience.columns import COLUMN_TYPES
from headrace.models.packing import PackRow
from headrace.runtime.refs import Ref, RefLost, Refs, near
from headrace.runtime.wire.wire_format import Parcel, pack, unpack
from headrace.runtime.wire.wire_types import WireTypes
from headrace.training.rows.spans import StalenessError

_TYPES = COLUMN_TYPES.with_types(WireTypes({"pack_row": PackRow, "ref": Ref}))
_ALIGNED = 64
"""Bytes at a multiple of which each array begins: no number lies across."""
_ROWS, _LOST, _STALE, _FAILED = "rows", "lost", "stale", "failed"
"""What is broadcast: rows; or why the one that reads has none, which all raise then."""


class Beside(Protocol):
    """Ranks on one machine that are given the same rows."""

    @property
    def reads(self) -> bool:
        """Whether this one does, for all of them."""

    def of_reader(self, tensor: Tensor) -> None:
        """Overwrite it with that of the rank that reads. In the host's memory; by all. Raises RuntimeError."""


class RowReader:
    """Blocking; on one compute lane."""

    def __init__(self, refs: Refs) -> None:
        self.refs = refs
        self._beside: Beside | None = None
        self._read = self._told = 0

    def join(self, beside: Beside | None) -> None:
        """From now on read with these; None: for itself."""
        self._beside = beside

    def __call__(self, wanted: Collection[Ref], made: Callable[[Refs], list[PackRow]]) -> list[PackRow]:
        """What `made` makes of refs, with those that are `wanted` at hand; of the rank that reads, where others do with
        it. By all of those, in one order. Raises RefLost, StalenessError in all; RuntimeError where one of them is
        lost."""
        beside = self._beside
        if beside is None:
            return self._own(wanted, made)
        if not beside.reads:
            return self._of(beside)
        try:
            rows = self._own(wanted, made)
            parcel = pack({_ROWS: rows}, _TYPES, "the rows")
        except Exception as error:
            _tell(beside, pack(_told_of(error), _TYPES, "an error"))
            raise
        _tell(beside, parcel)
        return rows

    def taken(self) -> tuple[int, int]:
        """Bytes since it was asked last: of arrays that it read by ref; of what it was told of those another read."""
        found = self._read, self._told
        self._read = self._told = 0
        return found

    def _own(self, wanted: Collection[Ref], made: Callable[[Refs], list[PackRow]]) -> list[PackRow]:
        counted = _Counted(near(self.refs, wanted))
        rows = made(counted)
        self._read += counted.read
        return rows

    def _of(self, beside: Beside) -> list[PackRow]:
        count = torch.zeros(1, dtype=torch.int64)
        beside.of_reader(count)
        sizes = torch.zeros(int(count), dtype=torch.int64)
        beside.of_reader(sizes)
        *begins, end = _places(sizes.tolist())
        flat = torch.empty(end, dtype=torch.uint8)
        beside.of_reader(flat)
        lies = flat.numpy().data
        envelope, *buffers = (lies[begin : begin + size] for begin, size in zip(begins, sizes.tolist(), strict=True))
        told = unpack(Parcel(bytes(envelope), buffers), _TYPES, "rows that another rank read")
        if _ROWS in told:
            self._told += int(sizes.sum())
            return list(told[_ROWS])
        if _LOST in told:
            raise RefLost(told[_LOST])
        if _STALE in told:
            raise StalenessError(told[_STALE])
        raise RuntimeError(f"the rank that reads rows for this one has none: {told[_FAILED]}")


def _tell(beside: Beside, parcel: Parcel) -> None:
    parts = [memoryview(parcel.envelope), *parcel.buffers]
    sizes = [len(part) for part in parts]
    beside.of_reader(torch.tensor([len(parts)]))
    beside.of_reader(torch.tensor(sizes))
    *begins, end = _places(sizes)
    flat = torch.empty(end, dtype=torch.uint8)
    lies = flat.numpy().data
    for begin, part in zip(begins, parts, strict=True):
        lies[begin : begin + len(part)] = part
    beside.of_reader(flat)


def _places(sizes: Sequence[int]) -> list[int]:
    """Where each of some parts begins, and where the last one ends."""
    found, end = [], 0
    for size in sizes:
        found.append(end)
        end += -(-size // _ALIGNED) * _ALIGNED
    return [*found, end]


def _told_of(error: Exception) -> dict[str, object]:
    if isinstance(error, RefLost):
        return {_LOST: error.ref}
    if isinstance(error, StalenessError):
        return {_STALE: str(error)}
    return {_FAILED: f"{type(error).__name__}: {error}"}


class _Counted:
    """Refs, and how many bytes of arrays they gave."""

    def __init__(self, refs: Refs) -> None:
        self._refs = refs
        self.read = 0

    def put(self, columns: Mapping[str, Any]) -> Ref:
        return self._refs.put(columns)

    def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        found = self._refs.get(ref, names)
        self.read += sum(each.nbytes for each in found.values() if isinstance(each, np.ndarray | KeptSets))
        return found

    def free(self, ref: Ref) -> None:
        self._refs.free(ref)
