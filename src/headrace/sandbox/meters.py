"""What is looked at while a child runs: whether its processes together stay within their memory, and its own time."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Literal, Protocol

from headrace.sandbox import linux
from headrace.sandbox.descendants import descendants
from headrace.sandbox.tree import (
    Thread,
    computed_s_by,
    exact_memory_of,
    living_of,
    memory_of,
    socket_bytes_of,
    threads_of,
)

_SOONEST_S, _LATEST_S = 0.005, 0.1
"""Between two looks."""
_FIRST_S = 0.02
"""Before the first look at the time; of a few ticks of the kernel, with which its accounts grow."""
_FASTEST_BYTES = 4 << 30
"""A second, by which processes grow: so soon they could be at their limit."""
_TRIES = 3


class Meter(Protocol):
    @property
    def first_s(self) -> float:
        """Seconds after the start of the child in which nothing can be full, so that nobody need look."""

    def look(self, moment: float) -> tuple[bool, float]:
        """Whether the child has to end now, and otherwise in how many seconds to look again. `moment` is that of
        `watch.now`."""


class MemoryMeter:
    """The memory of all processes that come from this one, and of the sockets that they share a network with."""

    def __init__(self, most_bytes: int, network: Literal["host", "this", "children"]) -> None:
        """See `tree.memory_of` for what counts. `network` says whose is theirs alone: that of this process too, or
        that of its children's children. Sockets of the host's do not count."""
        self._most_bytes = most_bytes
        self._network = network

    @property
    def first_s(self) -> float:
        """See `Meter`. What there is at the start is far less than half of what may be."""
        return _pause_s(self._most_bytes / 2)

    def look(self, moment: float) -> tuple[bool, float]:
        """See `Meter`."""
        left = self._most_bytes - self._used()
        return left < 0, _pause_s(left)

    def _used(self) -> int:
        most = 0
        for _ in range(_TRIES):  # a process that hands its memory on and ends could be missed
            tree = descendants()
            used, gone = memory_of(tree)
            used = self._exact(tree) if used > self._most_bytes else used
            most = max(most, used + self._held_by_sockets(tree))
            if not gone:
                break
        return most

    def _exact(self, tree: Mapping[int, int]) -> int:
        """What processes share is told in parts, of one process after another. Where some end meanwhile, the others
        share it among fewer, and the parts are too large together: they are read again, as often as it may be."""
        for _ in range(_TRIES - 1):
            living = living_of(tree)
            used = exact_memory_of(tree)
            if used <= self._most_bytes or living_of(tree) == living:
                return used
            tree = descendants()
        return exact_memory_of(tree)

    def _held_by_sockets(self, tree: Mapping[int, int]) -> int:
        match self._network:
            case "this":
                return socket_bytes_of(os.getpid())
            case "children":
                return socket_bytes_of(next((pid for pid, parent in tree.items() if parent in tree), 0))
        return 0


def _pause_s(left: float) -> float:
    """In which processes cannot take so many bytes."""
    return min(max(left / _FASTEST_BYTES, _SOONEST_S), _LATEST_S)


class TimeMeter:
    """The own time of the processes that come from this one, counted from `begin` on."""

    def __init__(self, allowed_s: float) -> None:
        self._allowed_s = allowed_s
        self._began = self._due = math.inf
        self._own = OwnTime({})
        self._computed_s = 0.0

    @property
    def first_s(self) -> float:
        """See `Meter`."""
        return _SOONEST_S

    @property
    def runs(self) -> bool:
        return self._began < math.inf

    @property
    def spent_s(self) -> float:
        """As of the last look, or of the end."""
        return self._own.spent_s

    def begin(self, moment: float) -> None:
        tree = _tree()
        self._own = OwnTime(threads_of(tree))
        self._computed_s = computed_s_by(tree)
        self._began = moment
        self._due = moment + min(_FIRST_S, self._allowed_s)

    def look(self, moment: float) -> tuple[bool, float]:
        """See `Meter`."""
        if moment < self._due:
            return False, min(self._due - moment, _FIRST_S)
        tree, passed_s = _tree(), moment - self._began
        self._own.pass_to(passed_s, threads_of(tree))
        left_s = self._allowed_s - self.spent_s
        computed_s = computed_s_by(tree) - self._computed_s
        if left_s <= 0 or min(passed_s, computed_s) >= self._allowed_s:
            return True, 0.0
        pause_s = min(max(passed_s / 4, _FIRST_S), _LATEST_S, max(left_s, _SOONEST_S))
        self._due = moment + pause_s
        return False, pause_s

    def end(self, moment: float) -> None:
        if self.runs:
            self._own.pass_to(moment - self._began, {})


def _tree() -> dict[int, int]:
    return descendants() if linux.IS_LINUX else {}


class OwnTime:
    """How much of the time that passes is a program's own.

    All of it is, but what it waited for a processor that others had. While several of its threads want a processor
    they may be the others themselves, so then all of it is. As of the kernel's account of each thread at each look.
    """

    def __init__(self, threads: Mapping[int, Thread]) -> None:
        self.spent_s = 0.0
        self._passed_s = 0.0
        self._threads = threads

    def pass_to(self, passed_s: float, threads: Mapping[int, Thread]) -> None:
        """`threads` as they are `passed_s` after the beginning."""
        elapsed_s = max(passed_s - self._passed_s, 0.0)
        waited_s = 0.0
        if sum(thread.runs for thread in threads.values()) <= 1:
            waited_s = max([0.0, *(self._waited_s(*item) for item in threads.items())])
            if elapsed_s >= _FIRST_S and any(self._starves(*item) for item in threads.items()):
                waited_s = elapsed_s
        self.spent_s += max(elapsed_s - waited_s, 0.0)
        self._passed_s = max(passed_s, self._passed_s)
        self._threads = threads

    def _waited_s(self, number: int, thread: Thread) -> float:
        before = self._threads.get(number)
        return (thread.waited_ns - (0 if before is None else before.waited_ns)) / 1e9

    def _starves(self, number: int, thread: Thread) -> bool:
        """It wants a processor, and had none since the look before: a wait counts only once it is over."""
        before = self._threads.get(number)
        return before is not None and before.runs and thread.runs and before.computed_ns == thread.computed_ns
