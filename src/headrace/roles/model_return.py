"""A model that only scores, in a process of its own or in several, comes back alone and in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from headrace.observe.events import EventSink
from headrace.runtime.patience import StandStill
from headrace.runtime.placing import NoRoom
from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.runtime.supervision import SCORER, LossWindow, Measure, Often, after_failure
from headrace.runtime.workers import WorkerError, WorkerLost, Workers

_ASKED_S = 1.0
"""After which one that is lost is brought back: whoever was asking it does so by then, and knows more of its loss."""
_LOOK_S = 60.0
"""After which it is looked at, though nothing has changed."""


async def _nothing() -> None: ...


class ModelReturn:
    """Of the only workers of their kind, whose weights are those that they are made with; who takes versions has none
    until it has taken one again."""

    def __init__(
        self,
        workers: Workers[Any],
        clock: Clock,
        restart: Callable[[], Awaitable[object]],
        often: Often | None = None,
    ) -> None:
        """`restart` makes those that are lost anew, and whoever is of no use without them. `often`: losses with which
        that is over, beside those without an answer between; None: there are no others."""
        self._workers = workers
        self._clock = clock
        self._restart = restart
        self._lose: Callable[[str], object] = lambda worker: None
        self._tell: EventSink = lambda kind, data: None
        self._failures = 0
        """In a row, without an answer."""
        self._losses = LossWindow(often)
        self.once_back: Callable[[], Awaitable[None]] = _nothing
        """Awaited when it is made anew, perhaps on another machine, before anybody asks it. Raises as `restart`."""
        self._turn = asyncio.Lock()
        self._is_midway = False
        """Made anew, perhaps, and not all that belongs to that is done."""
        self.lives = 0
        """How often it was begun to make it anew: of what it was told in one life, it knows nothing in the next."""
        self.outage = StandStill(clock)
        """The seconds in which it was lost, or not back yet: nobody had anything of it."""
        self._down: set[int] = set()
        workers.changed.listen(self._look)

    def tell_to(self, lose: Callable[[str], object], tell: EventSink) -> None:
        """`lose` is told of a worker each time that it ends, since what it kept is gone; `tell` of what is done."""
        self._lose, self._tell = lose, tell

    def answered(self) -> None:
        self._failures = 0

    async def run(self) -> NoReturn:
        """Bring it back also while nobody asks it, until cancelled. Raises as `after`."""
        workers, clock = self._workers, self._clock
        while True:
            if not self._is_needed:
                with suppress(WaitTimeout):
                    await workers.changed.wait(clock, _LOOK_S, "the loss of a model that scores")
                continue
            await clock.sleep(_ASKED_S)
            if self._is_needed:
                rank, reason = next(iter(workers.lost.items()), (0, "its return was broken off"))
                await self.after(WorkerLost(rank, reason, worker=workers.handles[rank].worker))

    @property
    def _is_needed(self) -> bool:
        """Whether it is lost, or who brought it back was cancelled in the midst of that."""
        return bool(self._workers.lost) or (self._is_midway and not self._turn.locked())

    async def settled(self) -> None:
        """Once nobody is about to bring it back: it is there, unless that failed, or it is lost again."""
        async with self._turn:
            pass

    async def after(self, lost: WorkerLost) -> None:
        """Once all are there again. Raises the loss where that comes too often, or is another's; and where no node has
        room for one in time."""
        names = [handle.worker for handle in self._workers.handles]
        if lost.worker not in names:
            raise lost
        try:
            async with self._turn:
                with self.outage.standing():
                    await self._bring_back(lost, names)
                self._look()
        finally:
            if self._is_midway:  # cancelled: `run` goes on with it
                self._workers.changed.notify()

    async def _bring_back(self, lost: WorkerLost, names: Sequence[str]) -> None:
        while self._workers.lost or self._is_midway:
            self._failures += 1
            following = after_failure(SCORER, self._failures)
            too_often = self._losses.lost(self._clock.now())
            if following.measure is Measure.STOP:
                too_often = f"{self._failures} times in a row"
            gone = dict(self._workers.lost)
            reason = gone.get(lost.rank) or next(iter(gone.values()), lost.reason)
            if too_often is not None:
                raise WorkerLost(
                    lost.rank,
                    f"{reason}; that was so {too_often}: mend it, and --resume the run",
                    worker=lost.worker,
                ) from lost
            for rank, why in gone.items():
                message = f"{names[rank]} is made anew: {why}"
                self._tell("worker_lost", {"worker": names[rank], "message": message})
            await self._clock.sleep(following.pause_s)
            self.lives += 1  # before it answers anybody
            self._is_midway = True
            try:
                await self._restart()
                await self.once_back()
                self._is_midway = False
            except (WorkerError, WorkerLost, WaitTimeout, OSError) as error:  # why is in `lost`
                if isinstance(error, WorkerLost) and isinstance(error.__cause__, NoRoom):
                    raise  # the next would wait as long again

    def _look(self) -> None:
        down = set(self._workers.lost)
        for rank in sorted(down - self._down):
            self._lose(self._workers.handles[rank].worker)
        if down and not self._down:
            self.outage.begin()
        elif self._down and not down:
            self.outage.end()
        self._down = down
