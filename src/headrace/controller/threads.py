"""How many CPU threads each compute lane gets."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.runtime.inline import InlineRuntime

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

    Where lanes take turns, each has all threads. Where they compute beside each other, the engine has half, and the
    trainer the rest, and one more while the engine rests. Not all: OpenMP keeps a team of threads for each lane, and
    once all teams together outnumber the processors its barriers sleep instead of spinning, which costs more than the
    threads bring.
    """

    def __init__(self, total: int, *, take_turns: bool) -> None:
        """`take_turns`: the heavy lanes share one thread of the runtime, as its `turns`."""
        self._total = total
        self._take_turns = take_turns
        self._lock = threading.Lock()
        self._busy: dict[str, None] = {}

    def threads(self, lane: str, alone: bool) -> int:
        """Threads for a call on `lane`; `alone`: no other heavy lane computes now."""
        if lane not in HEAVY_LANES:
            return 1
        if self._take_turns:
            return self._total
        half = max(self._total // 2, 1)
        if lane == "engine":
            return half
        return min(self._total - half + int(alone), self._total) or 1

    @contextmanager
    def around(self, lane: str) -> Iterator[None]:
        """Wraps one call, on the lane's own thread."""
        import torch

        with self._lock:
            count = self.threads(lane, alone=not self._busy)
            if lane in HEAVY_LANES:
                self._busy[lane] = None
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)
        try:
            yield
        finally:
            with self._lock:
                self._busy.pop(lane, None)


def inline_runtime(threads: int | None, *, take_turns: bool) -> InlineRuntime:
    """The runtime of this machine, with as many threads as configured. Its lanes alone compute with more than one."""
    import torch

    torch.set_num_threads(1)
    share = ThreadShare(available_threads(threads), take_turns=take_turns)
    return InlineRuntime(share.around, turns=HEAVY_LANES if take_turns else ())
