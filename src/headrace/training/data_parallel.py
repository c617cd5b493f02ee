"""Ranks that train one model together: each has all of its weights, and gradients of its own rows, which are added up
before a step.

Gradients are sums over tokens (`BatchSums`), so that which rank had which rows, and how many, does not matter. What
decides on a step is computed by the first rank for all: the weights stay equal bit for bit.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import TCPStore

from headrace.training.merging import gathered, merged, plain
from headrace.training.sums import BatchSums
from headrace.weights.gloo import gloo_group, listening_store

_HOST = "127.0.0.1"
_BUCKET = 1 << 24
"""Numbers that are added up at once: 64 MiB."""


class Meeting:
    """Where the ranks find each other; the first one's."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: in which all have to be there. Raises OSError."""
        self.store, self.port = listening_store(_HOST, seconds)


class DataParallel:
    """One rank of several, on one machine. Everything here is done by all of them, in one order."""

    def __init__(self, rank: int, size: int, meeting: Meeting | int, seconds: float) -> None:
        """`meeting`: the first rank's own, or its port. `seconds`: that a rank may be later than another. Raises
        RuntimeError."""
        self.rank = rank
        self.size = size
        if isinstance(meeting, Meeting):
            self._store: TCPStore = meeting.store
        else:
            self._store = TCPStore(_HOST, meeting, is_master=False, timeout=timedelta(seconds=seconds))
        self._group: Any = gloo_group(self._store, rank, size, _HOST, seconds)

    def add_up(self, flat: Tensor) -> None:
        """Give all ranks the sum of their `flat`, float32 [N]: the same bits."""
        for part in flat.split(_BUCKET):
            self._group.reduce(part, 0).wait()
            self._group.broadcast(part, 0).wait()

    def of_first(self, value: float) -> float:
        """The first rank's."""
        told = torch.tensor([value], dtype=torch.float64)
        self._group.broadcast(told, 0).wait()
        return float(told)

    def merged(self, sums: BatchSums) -> BatchSums:
        """Those of all ranks."""
        return merged(gathered(self._group, self.size, plain(sums)))
