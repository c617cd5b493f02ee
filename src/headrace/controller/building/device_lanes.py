"""The compute lanes of a run whose models are on a CUDA device."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from headrace.controller.building.threads import COMPUTE_FOR_LONG, TRAINER, kind_of, set_threads

_TURNS = "device"


class DeviceLanes:
    """A thread and a stream for each lane: what one lane waits for, no other does. A `ThreadPlacement`.

    A call has ended only when its stream has: what it leaves on the device is there for whoever is told of it, on
    whatever stream.
    """

    def __init__(self, device: torch.device, threads: int, *, turns: bool = False) -> None:
        """`turns`: all who compute for long take turns, on one thread and one stream."""
        self._device = device
        self._threads = threads
        self._turns = turns
        self._streams: dict[str, torch.cuda.Stream] = {}
        if turns:
            # What cuBLAS needs to sum in one order; it looks when it is first used.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    def thread(self, lane: str, busy: Mapping[str, str]) -> str:
        return _TURNS if self._turns and kind_of(lane) in COMPUTE_FOR_LONG else lane

    @contextmanager
    def around(self, thread: str) -> Iterator[None]:
        # Models are loaded there, which is work for the processor.
        set_threads(self._threads if kind_of(thread) in (TRAINER, _TURNS) else 1)
        stream = self._streams.get(thread)
        if stream is None:
            stream = self._streams[thread] = torch.cuda.Stream(self._device)
        with torch.cuda.stream(stream):
            try:
                yield
            finally:
                stream.synchronize()

    def rebalance(self) -> None:
        """Threads only hand out work to the device."""
