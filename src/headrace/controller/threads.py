"""How many CPU threads each compute lane gets: all of them while it computes alone, its share beside another."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

HEAVY_LANES = ("engine", "trainer")
"""Lanes that compute for long; the others use one thread."""


def available_threads(configured: int | None) -> int:
    """The threads that a run may use: as configured, else the processors that this process may run on."""
    if configured is not None:
        return configured
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class ThreadShare:
    """Sets torch's number of threads, which torch keeps for each calling thread, when a call on a lane begins.

    A call that began alone keeps its threads when another lane's begins: calls are short beside a batch.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._lock = threading.Lock()
        self._busy: dict[str, None] = {}

    def threads(self, lane: str, busy: int) -> int:
        """Threads for a call on `lane` while `busy` other heavy lanes compute."""
        return max(self._total // (busy + 1), 1) if lane in HEAVY_LANES else 1

    @contextmanager
    def around(self, lane: str) -> Iterator[None]:
        """Wraps one call, on the lane's own thread."""
        import torch

        with self._lock:
            count = self.threads(lane, len(self._busy))
            if lane in HEAVY_LANES:
                self._busy[lane] = None
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)
        try:
            yield
        finally:
            with self._lock:
                self._busy.pop(lane, None)
