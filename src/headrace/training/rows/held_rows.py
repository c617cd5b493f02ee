"""The arrays of a batch that is all there, beside the trainer that goes over it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.models.packing import MicroBatch, PackRow, pack
from headrace.training.protocol import Trainer


class HeldRows:
    """Rows by their place, and the columns that passes over them add. Blocking; on the trainer's lane."""

    def __init__(self, rows: Sequence[PackRow], batch: int) -> None:
        """`rows`: in an order that does not depend on when they came. Each is told the number of its `batch`, and the
        optimiser steps that were `made` on it."""
        self._rows = [replace(row, columns={**row.columns, "batch": float(batch)}) for row in rows]
        self._made = 0

    def __len__(self) -> int:
        return len(self._rows)

    def score(self, places: Sequence[int], name: str, function: Callable[[MicroBatch], Tensor]) -> None:
        """Add a column: what `function` gives for the rows at `places` in one pass."""
        self._set(places, {name: function(self._pack(places))})

    def prepare(self, function: Callable[[Sequence[MicroBatch]], None]) -> None:
        """Add the columns that `function` adds to the whole batch."""
        whole = pack(self._rows)
        known = set(whole.columns)
        function([whole])
        added = {name: column for name, column in whole.columns.items() if name not in known}
        self._set(range(len(self._rows)), added)

    def accumulate(self, trainer: Trainer, places: Sequence[int]) -> None:
        """One micro-batch; what its loss leaves for later passes becomes columns."""
        self._set(places, trainer.accumulate(self._pack(places)))

    def stepped(self) -> None:
        """One optimiser step more was made on the batch."""
        self._made += 1

    def column(self, name: str) -> list[NDArray[np.float32] | None]:
        """Of each row what it has under this name, a number a token."""
        found = (row.columns.get(name) for row in self._rows)
        return [values if isinstance(values, np.ndarray) else None for values in found]

    def _pack(self, places: Sequence[int]) -> MicroBatch:
        micro = pack([self._rows[place] for place in places])
        micro.columns["made"] = torch.full((micro.num_tokens,), float(self._made))
        return micro

    def _set(self, places: Sequence[int], columns: Mapping[str, Tensor]) -> None:
        """Columns [N] over the rows at `places`, packed in that order."""
        ends = np.cumsum([len(self._rows[place]) for place in places])[:-1]
        for name, values in columns.items():
            for place, part in zip(places, np.split(values.numpy(), ends), strict=True):
                row = self._rows[place]
                self._rows[place] = replace(row, columns={**row.columns, name: part})
