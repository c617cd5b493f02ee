"""A model that only scores, in a process of its own, comes back alone and in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.runtime.supervision import SCORER, Measure, after_failure
from headrace.runtime.workers import WorkerError, WorkerLost, Workers

Tell = Callable[[str, dict[str, Any]], None]
"""An event: its kind, and what of it."""


class ModelReturn:
    """Of the only worker of its kind, whose weights are those that it is made with; one that takes versions has none
    until it has taken one again."""

    def __init__(self, workers: Workers[Any], clock: Clock) -> None:
        self._workers = workers
        self._clock = clock
        self._lose: Callable[[str], object] = lambda worker: None
        self._tell: Tell = lambda kind, data: None
        self._failures = 0
        """In a row, without an answer."""
        self._turn = asyncio.Lock()
        self._is_up = True
        workers.changed.listen(self._look)

    def tell_to(self, lose: Callable[[str], object], tell: Tell) -> None:
        """`lose` is told of the worker each time that it ends, since what it kept is gone; `tell` of what is done."""
        self._lose, self._tell = lose, tell

    def answered(self) -> None:
        self._failures = 0

    async def after(self, lost: WorkerLost) -> None:
        """Once it is there again. Raises the loss where that comes too often in a row, or is another's."""
        if lost.worker != self._workers.handles[0].worker:
            raise lost
        async with self._turn:
            while 0 in self._workers.lost:
                self._failures += 1
                following = after_failure(SCORER, self._failures)
                if following.measure is Measure.STOP:
                    raise WorkerLost(
                        lost.rank,
                        f"{self._workers.lost[0]}; that was so {self._failures} times in a row: mend it, and --resume "
                        "the run",
                        worker=lost.worker,
                    ) from lost
                worker = self._workers.handles[0].worker
                message = f"{worker} is made anew: {self._workers.lost[0]}"
                self._tell("worker_lost", {"worker": worker, "message": message})
                await self._clock.sleep(following.pause_s)
                try:
                    await self._workers.restart(0)
                except (WorkerError, WorkerLost, WaitTimeout, OSError):
                    continue  # why is in `lost`
            self._look()

    def _look(self) -> None:
        is_up = 0 not in self._workers.lost
        if self._is_up and not is_up:
            self._lose(self._workers.handles[0].worker)
        self._is_up = is_up
