"""The ranks of a trainer group: workers, or the one on a lane of this process."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from headrace.algorithms.pieces import PieceError
from headrace.runtime.protocol import Clock, Services, WaitTimeout
from headrace.runtime.together import together
from headrace.runtime.workers import WorkerError, WorkerLost, Workers
from headrace.training.layouts.ranks import WHOLE, Layout
from headrace.training.protocol import CheckpointError
from headrace.training.rank import TrainerRank
from headrace.training.rows.spans import StalenessError
from headrace.weights.plane import WeightError

_LOST_S = 5.0
"""In which it is known which rank it was that others do not hear of any more."""

_ERRORS: dict[str, type[Exception]] = {
    each.__name__: each for each in (CheckpointError, OSError, PieceError, StalenessError, WeightError)
}
"""What a rank in another process raises, and the caller is to be told as it is."""


class Ranks(Protocol):
    """The ranks of a group."""

    @property
    def layout(self) -> Layout:
        """How many there are, and what each has."""

    @property
    def left(self) -> Sequence[int]:
        """Those that are not lost."""

    async def call(self, method: str, *args: Any, what: str) -> Any:
        """What `method` of the first one's `TrainerRank` answers."""

    async def each(self, method: str, args: Mapping[int, Sequence[Any]], *, what: str) -> dict[int, Any]:
        """What those answer that have arguments, by rank; they compute at the same time."""


def who_saves(ranks: Ranks) -> Sequence[int]:
    """All, where each has a part; else the first that is left, or the first, who says how it was lost: nobody would
    write nothing, and call it a checkpoint."""
    return range(ranks.layout.size) if ranks.layout.joint else ranks.left[:1] or [0]


class RankHere:
    """The only rank, an object of this process."""

    layout = WHOLE
    left = (0,)

    def __init__(self, rank: TrainerRank, services: Services, lane: str) -> None:
        """Its blocking methods run on `lane`."""
        self._rank = rank
        self._services = services
        self._lane = lane

    async def call(self, method: str, *args: Any, what: str) -> Any:
        """See `Ranks.call`."""
        function = getattr(self._rank, method)
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        return await self._services.compute(self._lane, function, *args)

    async def each(self, method: str, args: Mapping[int, Sequence[Any]], *, what: str) -> dict[int, Any]:
        """See `Ranks.each`."""
        return {rank: await self.call(method, *given, what=what) for rank, given in args.items()}


class RankWorkers:
    """Ranks that are workers. What one raises in this process is raised as it is."""

    def __init__(self, workers: Workers[Any], clock: Clock, seconds: float, layout: Layout = WHOLE) -> None:
        """`seconds`: that one of several may be later than another. `layout`: of all the workers."""
        self.layout = layout
        self._workers = workers
        self._clock = clock
        self._seconds = seconds

    @property
    def left(self) -> Sequence[int]:
        """See `Ranks.left`."""
        return [rank for rank in range(self.layout.size) if rank not in self._workers.lost]

    async def come_together(self) -> None:
        """Several ranks train one model from now on; all are new. Raises WorkerLost."""
        if self.layout.size > 1 or self.layout.joint:
            port = await self.call("meet", self._seconds, what="a place to meet")
            heads = self.layout.heads
            told = {rank: (rank, port, self._seconds, rank in heads) for rank in range(self.layout.size)}
            await self.each("come_together", told, what="the ranks to come together")

    async def restart(self) -> None:
        """Make all anew from their specs. Raises WorkerLost."""
        await together(self._workers.restart(rank) for rank in range(self.layout.size))
        await self.come_together()

    async def call(self, method: str, *args: Any, what: str) -> Any:
        """See `Ranks.call`. Raises WorkerLost."""
        return await self._asked(0, method, args, what)

    async def each(self, method: str, args: Mapping[int, Sequence[Any]], *, what: str) -> dict[int, Any]:
        """See `Ranks.each`. Raises WorkerLost: also where others only say that one does not answer them."""
        try:
            found = await together(self._asked(rank, method, given, what) for rank, given in args.items())
        except WorkerError as error:
            with suppress(WaitTimeout):
                await self._workers.changed.wait_until(
                    lambda: bool(self._workers.lost), self._clock, _LOST_S, lambda: "a rank's end"
                )
            if lost := self._workers.lost:
                rank, reason = next(iter(lost.items()))
                raise WorkerLost(rank, reason, worker=self._workers.handles[rank].worker) from error
            raise
        return dict(zip(args, found, strict=True))

    async def _asked(self, rank: int, method: str, args: Sequence[Any], what: str) -> Any:
        try:
            return (await self._workers.call(method, *args, rank=rank, what=what))[0]
        except WorkerError as error:
            own = error.__cause__
            if not isinstance(own, Exception):
                if error.type in _ERRORS:
                    raise _ERRORS[error.type](error.text) from error
                raise
        raise own  # not while the other is handled: each would come of the other
