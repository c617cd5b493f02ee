"""Calls on lanes that have not ended, and whether each of them gets on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from headrace.runtime.lane_thread import LaneThread
from headrace.runtime.progress import Look, Marks, Progress, Standing, Stuck

_LOOK_S = 1.0
"""Between two looks."""


class WatchedCall:
    """One, in the event loop that waits for it."""

    def __init__(
        self,
        lane: str,
        thread: LaneThread,
        marks: Marks,
        look: Look,
        call: Future[Any],
        ended: Callable[[WatchedCall], None],
    ) -> None:
        """`ended` is told of its end, whether or not somebody waits for it still."""
        self.lane = lane
        self.thread = thread
        self.look = look
        self._marks = marks
        self._loop = asyncio.get_running_loop()
        self._call: Future[Any] | None = call
        """Until it has ended: it keeps whom it told of that, and what it gave would be in a ring with it."""
        self._ended = ended
        self.result: asyncio.Future[Any] = self._loop.create_future()
        """The call's, or Stuck. Whoever cancels it cancels a call that has not begun."""
        self.result.add_done_callback(self._cancel)
        call.add_done_callback(self._has_ended)

    @property
    def standing(self) -> Standing | None:
        """None where it has not begun, or has ended."""
        if self._call is None or not self._call.running():
            return None
        return Standing(self._marks.now[0], self.thread.waits_for_others())

    def _has_ended(self, call: Future[Any]) -> None:
        """On the call's thread, or on that which cancelled it."""
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits
            self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._ended(self)
        call, self._call = self._call, None
        if call is None or self.result.done():
            return
        if call.cancelled():
            self.result.cancel()
        elif (error := call.exception()) is not None:
            self.result.set_exception(error)
        else:
            self.result.set_result(call.result())

    def _cancel(self, result: asyncio.Future[Any]) -> None:
        if result.cancelled() and self._call is not None:
            self._call.cancel()


class CallWatch:
    """Looks at all of them once a second, while there are any."""

    def __init__(
        self, now: Callable[[], float], progress: Progress, give_up: Callable[[WatchedCall, Stuck], None]
    ) -> None:
        """`give_up` is told of a call that is stuck, before whoever waits for it is."""
        self._now = now
        self._progress = progress
        self._give_up = give_up
        self._calls: set[WatchedCall] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._looked = 0.0

    def add(self, lane: str, thread: LaneThread, marks: Marks, call: Future[Any]) -> WatchedCall:
        """In the event loop. Until it ends, or is given up."""
        watched = WatchedCall(lane, thread, marks, Look(self._progress, marks), call, self._calls.discard)
        self._calls.add(watched)
        loop = asyncio.get_running_loop()
        if self._timer is None or self._loop is not loop:
            self._loop, self._looked = loop, self._now()
            self._timer = loop.call_later(_LOOK_S, self._look)
        return watched

    def standing(self, lane: str) -> Standing | None:
        """Of the call that is on the lane; None where there is none."""
        found = (call.standing for call in self._calls if call.lane == lane)
        return next((each for each in found if each is not None), None)

    def _look(self) -> None:
        before, self._looked = self._looked, self._now()
        # Time in which this loop did not turn, as that of a machine that slept, says nothing of the calls.
        seconds = min(self._looked - before, 2 * _LOOK_S)
        for call in list(self._calls):
            found = call.look.after(seconds)
            if found is not None and not call.thread.is_debugged():
                unit, silent_s = found
                standing = call.standing
                self._calls.discard(call)
                stuck = Stuck(
                    f"{call.lane} is stuck: no {unit.replace('_', ' ')} has ended for {silent_s:.0f} s, of which "
                    f"{self._progress.limit(unit):.0f} are allowed (runtime.stuck.{unit}_s)"
                    f"{'' if standing is None else f'; {standing}'}"
                )
                self._give_up(call, stuck)
                if (
                    not call.result.done()
                ):  # nobody waits for one that was cancelled; its lane is to be had all the same
                    call.result.set_exception(stuck)
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look) if self._calls else None
