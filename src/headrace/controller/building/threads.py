"""Which thread a compute lane's call runs on, and with how many CPU threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.config import ConfigError, TrainConfig
from headrace.experience.columns import COLUMN_TYPES
from headrace.models.threads import set_threads
from headrace.runtime.inline import InlineRuntime, Span, SystemClock, ThreadPlacement, kind_of
from headrace.runtime.processors import available_processors

if TYPE_CHECKING:
    import torch

    from headrace.runtime.apart import Apart

_ENGINE, _TRAINER = "engine", "trainer"
_BESIDE = (_ENGINE, "lent", "reference", "proximal", "teacher", "critic", "reward", "judge")
"""Threads that compute for long beside the wide one, each with one processor."""
_COMPUTE_FOR_LONG = (_TRAINER, *_BESIDE)
_WIDE = "wide"
_MOST_PER_PROCESSOR = 8
_REST_S = 0.02
"""An engine that computed so short a time ago is about to go on: only the event loop lies between two of its calls."""


def available_threads(configured: int | None) -> int:
    """The threads that a run may use: as configured, else the processors that this process may run on."""
    return available_processors() if configured is None else configured


def check_threads(configured: int | None) -> None:
    """Raises ConfigError for more threads than the processors here can take turns at: OpenMP ends the process without
    a word where the system refuses it one."""
    most = _MOST_PER_PROCESSOR * available_threads(None)
    if configured is not None and configured > most:
        raise ConfigError(
            f"runtime.threads is {configured}, and this process has {available_threads(None)} processor(s): more than "
            f"{most} threads would only be in each other's way; lower it, or leave it out"
        )


class ThreadShare:
    """Shares the processors between engine and trainer, so that none rests while either has work. A `ThreadPlacement`.

    One thread of the process is wide: it computes with a team of threads. Whichever of the two computes alone is on it;
    of several engines, one at a time. While the trainer is on it, the engine computes on a thread of its own, with one
    processor, and the trainer gives up that one, in the midst of its call (`rebalance`). There is only one team,
    because OpenMP keeps a team for every thread that ever had one, and once all teams together outnumber the processors
    its barriers sleep instead of spinning, which costs more than the threads bring.
    """

    def __init__(self, total: int, now: Callable[[], float], *, turns: bool = False) -> None:
        """`turns`: all who compute for long take turns on the wide thread."""
        self._total = total
        self._turns = turns or total == 1
        self._now = now
        self._lock = threading.Lock()
        self._beside = 0
        """Calls on threads of their own that compute for long."""
        self._beside_until = float("-inf")

    def thread(self, lane: str, busy: Mapping[str, str]) -> str:
        kind = kind_of(lane)
        if kind == _TRAINER or (self._turns and kind in _BESIDE):
            return _WIDE
        # One engine at most: the others, lent ones too, and all of them while the trainer computes, are beside.
        return _WIDE if kind == _ENGINE and _WIDE not in busy.values() else lane

    @contextmanager
    def around(self, thread: str) -> Iterator[None]:
        if kind_of(thread) in _BESIDE:
            with self._lock:
                self._beside += 1
        try:
            if thread == _WIDE:
                self.rebalance()
            else:
                set_threads(1)
            yield
        finally:
            if kind_of(thread) in _BESIDE:
                with self._lock:
                    self._beside -= 1
                    self._beside_until = self._now() + _REST_S

    def rebalance(self) -> None:
        """On the wide thread: take the processors of those who rest, or give them up."""
        beside = max(self._beside, int(self._now() < self._beside_until))
        set_threads(max(self._total - beside, 1))


def takes_turns(config: TrainConfig) -> bool:
    """Whether all who compute for long take turns: where results are promised to the last bit. On a CPU the sums of a
    parallel product depend on how many threads it has, so that none may come and go; on a device, sums in one order are
    a setting of the whole process."""
    return config.async_.in_order


def inline_runtime(
    threads: int | None,
    *,
    device: torch.device | None = None,
    turns: bool = False,
    trace: Callable[[Span], None] | None = None,
    apart: Apart | None = None,
    limits: Mapping[str, float] | None = None,
) -> InlineRuntime:
    """The runtime of this machine, with as many threads as configured. Its lanes alone compute with more than one.

    `device`: that of the models, the CPU unless given. `apart`: for workers that are to be elsewhere.
    `limits`: see `Progress`.
    """
    import torch

    torch.set_num_threads(1)
    clock, total = SystemClock(), available_threads(threads)
    lanes: ThreadPlacement
    if device is None or device.type == "cpu":
        lanes = ThreadShare(total, clock.now, turns=turns)
    else:
        from headrace.models.device_lanes import DeviceLanes

        lanes = DeviceLanes(device, total, wide=(_TRAINER,), turns=_COMPUTE_FOR_LONG if turns else ())
    return InlineRuntime(lanes, clock, trace, types=COLUMN_TYPES, apart=apart, limits=limits)
