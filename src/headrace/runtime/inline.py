"""Everything in one process and one event loop; blocking work on named lanes, one thread each."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from headrace.runtime.call_watch import CallWatch, WatchedCall
from headrace.runtime.clock import SystemClock
from headrace.runtime.event_loop import on_own_thread
from headrace.runtime.event_loop_services import NO_TYPES, EventLoopServices
from headrace.runtime.lane_thread import LaneThread
from headrace.runtime.progress import Marks, Progress, Standing, Stuck, marked_by
from headrace.runtime.protocol import Clock
from headrace.runtime.wire.wire_types import WireTypes

if TYPE_CHECKING:
    from headrace.runtime.apart import Apart

T = TypeVar("T")

logger = logging.getLogger(__name__)

_SOON_S, _CLOSING_S = 1.0, 10.0
"""How long a lane's last call is waited for at `close`: before it is told, and in all."""


def kind_of(lane: str) -> str:
    """What computes there: the lanes of several engines are `engine`, `engine/1`, ..."""
    return lane.partition("/")[0]


class ThreadPlacement(Protocol):
    """Which thread runs a lane's calls, and under which conditions."""

    def thread(self, lane: str, busy: Mapping[str, str]) -> str:
        """The name of the thread for a call on `lane` that has no other call in flight; `busy`: the thread of each lane
        that has."""

    def around(self, thread: str) -> AbstractContextManager[None]:
        """Wraps each call, on its thread."""

    def rebalance(self) -> None:
        """See `Services.rebalance`."""


class ThreadPerLane:
    """The `ThreadPlacement` in which lanes have nothing to do with each other."""

    def thread(self, lane: str, busy: Mapping[str, str]) -> str:
        return lane

    def around(self, thread: str) -> AbstractContextManager[None]:
        return nullcontext()

    def rebalance(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Span:
    """One call on a lane."""

    lane: str
    thread: str
    begin: float
    """Seconds of the runtime's clock."""
    end: float


@dataclass(slots=True)
class _InFlight:
    """Calls on a lane that have not ended; they share a thread, which keeps them in order."""

    thread: str
    calls: int = 0


class InlineRuntime(EventLoopServices):
    """The runtime of one machine, of notebooks, debuggers and tests. Threads are made when first used."""

    def __init__(
        self,
        placement: ThreadPlacement | None = None,
        clock: Clock | None = None,
        trace: Callable[[Span], None] | None = None,
        *,
        copying: bool | None = None,
        types: WireTypes = NO_TYPES,
        apart: Apart | None = None,
        limits: Mapping[str, float] | None = None,
        on_stuck: Callable[[Stuck], None] = lambda stuck: None,
    ) -> None:
        """`trace` is given every call when it has ended, on the call's thread. `copying`: whatever crosses to or from
        workers goes through the wire codec; as the environment has it, unless given. `types` of columns. `apart`:
        for workers that are to be elsewhere. `limits`: see `Progress`. `on_stuck` is called before a call that is stuck
        is given up."""
        super().__init__(clock or SystemClock(), copying=copying, types=types, apart=apart)
        self._trace = trace
        self._placement = placement or ThreadPerLane()
        self._threads: dict[str, LaneThread] = {}
        self._in_flight: dict[str, _InFlight] = {}
        self._progress = Progress(limits)
        self._watch = CallWatch(self._clock.now, self._progress, self._give_up)
        self._on_stuck = on_stuck
        self._lock = threading.Lock()

    def place(self, placement: ThreadPlacement) -> None:
        """Run calls that are asked for from now on so."""
        self._placement = placement

    async def compute(self, lane: str, function: Callable[..., T], *args: Any) -> T:
        """See `Services.compute`. Raises Stuck where the call makes no progress, as it says itself
        (`progress.py`): it is left to its thread, with what waits behind it, and the lane has another."""
        self._check_open(lane)
        thread = self._begin(lane)
        lane_thread = self._threads.get(thread)
        if lane_thread is None:
            lane_thread = self._threads[thread] = LaneThread(thread)

        marks = Marks(self._progress)

        def call() -> T:
            begin = self._clock.now()
            try:
                with marked_by(marks), self._placement.around(thread):
                    return function(*args)
            finally:
                if self._trace is not None:
                    self._trace(Span(lane, thread, begin, self._clock.now()))

        future: Future[T] = lane_thread.submit(call)
        future.add_done_callback(lambda _: self._end(lane))
        try:
            return cast(T, await self._watch.add(lane, lane_thread, marks, future).result)
        finally:
            del future  # an error has this frame, and would be in a ring with it

    def _give_up(self, call: WatchedCall, stuck: Stuck) -> None:
        logger.error("%s; where it is:\n%s", stuck, call.thread.stack())
        self._on_stuck(stuck)
        if self._threads.get(call.thread.name) is call.thread:
            del self._threads[call.thread.name]
            call.thread.leave(stuck)

    def standing(self, lane: str) -> Standing | None:
        """See `Services.standing`."""
        return self._watch.standing(lane)

    def rebalance(self) -> None:
        """See `Services.rebalance`."""
        self._placement.rebalance()

    async def close(self) -> None:
        """See `Runtime.close`. Errors of tasks that nobody awaited are not raised here."""
        await super().close()
        threads, self._threads = list(self._threads.values()), {}
        for thread in threads:
            thread.close()
        for thread in threads:
            if not await on_own_thread(thread.join, _SOON_S):
                logger.warning("waiting up to %.0f s for the last call on lane %r to return", _CLOSING_S, thread.name)
                if not await on_own_thread(thread.join, _CLOSING_S):
                    logger.warning("the last call on lane %r did not return; it is left behind", thread.name)

    def _begin(self, lane: str) -> str:
        with self._lock:
            flight = self._in_flight.get(lane)
            if flight is None:
                flight = _InFlight(
                    self._placement.thread(lane, {other: flight.thread for other, flight in self._in_flight.items()})
                )
                self._in_flight[lane] = flight
            flight.calls += 1
            return flight.thread

    def _end(self, lane: str) -> None:
        """On whichever thread a call ended or was cancelled."""
        with self._lock:
            flight = self._in_flight[lane]
            flight.calls -= 1
            if not flight.calls:
                del self._in_flight[lane]
