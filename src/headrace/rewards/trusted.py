"""Trusted functions that were given as objects: called where they are, in the run's own process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from headrace.experience.failures import FailureKind, describe
from headrace.observe.durations import Durations
from headrace.rewards.outcome import Verdict
from headrace.rewards.processes.prepared import Scorer
from headrace.runtime.lane_thread import LaneThread
from headrace.runtime.protocol import Clock, WaitTimeout


class InProcess:
    """Calls one after another, on one thread, so that the run's event loop goes on.

    A call that takes too long fails its sample. No thread can be killed: it is left behind, and a new one takes the
    next call, so that two calls may overlap then.
    """

    def __init__(self, scorers: Sequence[Scorer], *, timeout_s: float, clock: Clock, times: Durations) -> None:
        """`times` is told how long calls took."""
        self._scorers = scorers
        self._timeout_s = timeout_s
        self._clock = clock
        self._times = times
        self._turn = asyncio.Lock()
        self._thread: LaneThread | None = None

    async def ask(self, place: int, arguments: list[Any]) -> Verdict:
        """What the scorer at `place` says, within `timeout_s` of its turn."""
        async with self._turn:
            if self._thread is None:
                self._thread = LaneThread("reward in process")
            began = self._clock.now()
            scorer = self._scorers[place]
            call = asyncio.wrap_future(self._thread.submit(lambda: scorer.score(arguments)))
            try:
                return await self._clock.wait_for(call, self._timeout_s, "a reward")
            except WaitTimeout:
                self._leave()
                return None, describe(FailureKind.REWARD_TIMEOUT, f"took longer than {self._timeout_s:g} s")
            finally:
                self._times.add(self._clock.now() - began)

    async def close(self) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._thread is not None:
            self._thread.close()
            self._thread = None
