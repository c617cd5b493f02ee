"""The compute lanes of a process whose models are on a CUDA device."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import torch

from headrace.models.device_settings import settle
from headrace.models.threads import set_threads
from headrace.runtime.inline import kind_of
from headrace.runtime.processors import available_processors

_TURNS = "device"
_ENGINE = "engine"
FIRST, _LATER = -1, 0
"""Priorities of streams. Engines' go first: a decode step is some hundred small kernels, each of which would otherwise
wait for those of a trainer's product that wait already; a trainer's kernels fill the device, and lose what decoding
takes."""


class DeviceLanes:
    """A thread and a stream for each lane: what one lane waits for, no other does. A `ThreadPlacement`.

    A call has ended only when its stream has: what it leaves on the device is there for whoever is told of it, on
    whatever stream.
    """

    def __init__(
        self, device: torch.device, threads: int, *, wide: Collection[str], turns: Collection[str] = ()
    ) -> None:
        """`wide`: kinds of lanes that compute with so many `threads` of the CPU, the others with one. `turns`: kinds of
        lanes that take turns, on one thread, which is wide, and one stream."""
        self._device = device
        self._threads = threads
        self._wide = {*wide, _TURNS}
        self._turns = turns
        self._streams: dict[str, torch.cuda.Stream] = {}
        settle(device)

    def thread(self, lane: str, busy: Mapping[str, str]) -> str:
        return _TURNS if kind_of(lane) in self._turns else lane

    @contextmanager
    def around(self, thread: str) -> Iterator[None]:
        # Models are loaded there, which is work for the processor.
        set_threads(self._threads if kind_of(thread) in self._wide else 1)
        stream = self._streams.get(thread)
        if stream is None:
            stream = self._streams[thread] = torch.cuda.Stream(
                self._device, priority=FIRST if kind_of(thread) == _ENGINE else _LATER
            )
        with torch.cuda.stream(stream):
            try:
                yield
            finally:
                stream.synchronize()

    def rebalance(self) -> None:
        """Threads only hand out work to the device."""


def lanes_on(device: torch.device, kind: str, threads: int | None, *, in_order: bool = False) -> DeviceLanes | None:
    """Those of a worker of this kind that computes on `device` and has a process of its own (`Worker.lanes`); None on a
    CPU, where lanes have no streams. `threads`: see `Host.threads`. `in_order`: sums are to be in one order."""
    if device.type == "cpu":
        return None
    count = available_processors() if threads is None else threads
    return DeviceLanes(device, count, wide=(kind,), turns=(kind,) if in_order else ())
