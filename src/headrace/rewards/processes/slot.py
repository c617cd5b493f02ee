"""One place in the pool, held by one scoring process after another.

Invariants: a call's time runs only while it is the oldest that the process has; a process that dies or runs out of
time costs that call alone, and the calls behind it go back to the front of the queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

from headrace.experience.failures import FailureKind
from headrace.observe.failure import words_of
from headrace.rewards.processes.clearing import Clearing
from headrace.rewards.processes.json_frames import encode_frame
from headrace.rewards.processes.queue import Call, CallQueue
from headrace.rewards.processes.reward_process import Launch, RewardProcess
from headrace.rewards.unwritable import CANNOT_WRITE, named, unwritable
from headrace.runtime.protocol import Clock, WaitTimeout

_DEPTH = 32
"""Calls that a process of a quick function has at once: it need not wait for the run's event loop in between."""
_QUICK_S = 0.02
"""A call that takes longer is followed by one call at a time, so that other processes can take the rest."""
_RESTART_PAUSE_S = 1.0

logger = logging.getLogger(__name__)


class Slot:
    def __init__(self, queue: CallQueue, launch: Launch, timeout_s: float, clock: Clock, clearing: Clearing) -> None:
        self._queue = queue
        self._launch = launch
        self._timeout_s = timeout_s
        self._clock = clock
        self._clearing = clearing
        self._process: RewardProcess | None = None
        self._in_flight: deque[Call] = deque()
        self._depth = 1
        self._stirred = asyncio.Event()

    @property
    def is_up(self) -> bool:
        return self._process is not None and not self._process.lost

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    async def open(self) -> None:
        """Start a process. Raises ConfigError if it does not load the function."""
        process = await RewardProcess.start(self._launch, self._clock, self._clearing)
        process.on_reply = self._reply
        process.on_lost = self._stirred.set
        self._process = process
        self._depth = 1
        self.feed()

    def feed(self) -> None:
        """Hand queued calls to the process, as many as it may have. One that cannot be written fails."""
        process = self._process
        while process is not None and not process.lost and len(self._in_flight) < self._depth:
            call = self._queue.take()
            if call is None:
                return
            try:
                frame = encode_frame(call.message)
            except CANNOT_WRITE as error:
                call.fail(FailureKind.REWARD_RAISED, unwritable(named(call.message[-1]), error))
                continue
            if not self._in_flight:
                call.began = self._clock.now()
                self._stirred.set()
            self._in_flight.append(call)
            process.send(frame)

    async def serve(self) -> None:
        """Replace the process whenever it is lost or killed, until cancelled."""
        is_told = False
        while True:
            if self._process is not None:
                late = await self._watch(self._process)
                ended = await self._end(self._process)
                self._process = None
                self._blame(late, ended)
            try:
                await self.open()
            except Exception as error:  # the user's file was changed under the run, or the machine has no room
                self._queue.fail_if_stranded(f"no process takes its place: {error}")
                if not is_told:
                    is_told = True
                    logger.warning(
                        "a process of %s ended, and none takes its place: %s; it is tried each %g s, and others go on",
                        self._launch.what,
                        words_of(error),
                        _RESTART_PAUSE_S,
                    )
                await self._clock.sleep(_RESTART_PAUSE_S)
            else:
                if is_told:
                    is_told = False
                    logger.warning("a process of %s takes the place of the one that ended before", self._launch.what)

    async def close(self) -> None:
        if self._process is not None:
            await self._end(self._process)
            self._process = None
        for call in self._in_flight:
            call.outcome.cancel()

    async def _end(self, process: RewardProcess) -> str:
        """As `RewardProcess.end`, but whatever goes wrong there costs the calls after it nothing."""
        try:
            return await process.end(self._clock)
        except Exception as error:
            logger.exception("a process that scores rewards could not be ended well")
            return f"could not be ended: {error}"

    async def _watch(self, process: RewardProcess) -> Call | None:
        """The call that ran out of time, or None once the process is lost."""
        while not process.lost:
            self._stirred.clear()
            if not self._in_flight:
                await self._stirred.wait()
                continue
            oldest = self._in_flight[0]
            left = self._timeout_s - oldest.age(self._clock.now())
            if left <= 0:
                return oldest
            try:
                await self._clock.wait_for(self._stirred.wait(), left, "a reward")
            except WaitTimeout:
                continue  # the oldest call may be another one by now
        return None

    def _blame(self, late: Call | None, ended: str) -> None:
        if late is None and self._in_flight:
            self._in_flight.popleft().fail(FailureKind.REWARD_DIED, f"the process {ended}")
        elif late is not None and late in self._in_flight:
            self._in_flight.remove(late)
            late.fail(FailureKind.REWARD_TIMEOUT, f"took longer than {self._timeout_s:g} s")
        unbegun = list(self._in_flight)
        self._in_flight.clear()
        self._queue.put_back(unbegun)

    def _reply(self, reply: list[Any]) -> None:
        match reply:
            case [int(call_id), (float() | list() | dict() | None) as value, (str() | None) as failure] if (
                self._in_flight and self._in_flight[0].id == call_id and (value is None) != (failure is None)
            ):
                call = self._in_flight.popleft()
            case _:
                if self._process is not None:
                    self._process.break_off(f"an answer to nothing: {str(reply)[:80]}")
                return
        call.settle((value, failure))
        now = self._clock.now()
        self._depth = _DEPTH if call.age(now) <= _QUICK_S else 1
        if self._in_flight:
            self._in_flight[0].began = now
        self.feed()
