"""The places of rollout workers: who is up, what comes aboard whom, and how one comes back that was lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.experience.drops import NothingToTrain
from headrace.experience.sample import GroupKey
from headrace.observe.events import EventSink
from headrace.roles.reissue import Blame, Losses, LostTime, rows_of
from headrace.runtime.at_start import anew_if_lost
from headrace.runtime.placing import NoRoom
from headrace.runtime.protocol import Runtime, WaitTimeout
from headrace.runtime.signal import Signal
from headrace.runtime.supervision import ROLLOUT_WORKER, LossWindow, Measure, Often, after_failure
from headrace.runtime.workers import Handle, WorkerError, WorkerLost, Workers
from headrace.store.writers import Writers
from headrace.weights.version import Version

_BEGIN_S = 600.0
_PATIENCE_S = 3600.0


Line = tuple[Version, Mapping[int, int]]
Engines = tuple[Sequence[Handle], Sequence[int]]


@dataclass(slots=True, eq=False)
class Seat:
    """A worker's place, which outlives the worker."""

    rank: int
    writer: int
    """Its number among those who journal: each life has its own, so that nothing is written behind a torn end."""
    losses: LossWindow
    is_up: bool = False
    leaves: bool = False
    """Nothing more comes aboard, and then it ends."""
    life: int = 0
    """How many workers it had."""
    cleared: int = 0
    """Of how many of these nothing is left."""
    aboard: list[GroupKey] = field(default_factory=list)
    alone: GroupKey | None = None
    """Nothing else comes aboard."""
    blame: Blame = field(default_factory=Blame)
    since: float = 0.0
    """When it began with what it is at, or was lost."""
    line: Line | None = None
    """That the worker was told, see `RolloutSeats`; so with `engines`."""
    engines: Engines | None = None


class RolloutSeats:
    """Each group comes aboard the worker with the least aboard. A worker comes back after a pause, until it was lost
    too often: then NothingToTrain is raised."""

    def __init__(
        self,
        workers: Workers[Any],
        count: int,
        runtime: Runtime,
        writers: Writers,
        losses: Losses,
        often: Often | None = None,
    ) -> None:
        """`workers`: so many, of a kind as `RolloutWorker`. `losses`: which groups are to be alone. `often`: losses of
        one that are too many, but for those that a prompt is the reason of; None: only those in a row are."""
        self.workers = workers
        self._runtime = runtime
        self._losses = losses
        self._often = often
        self._writers = writers
        self._seats = [Seat(rank, writers.begin(), LossWindow(often)) for rank in range(count)]
        self._changed = Signal()
        self._given_up: Exception | None = None
        self._closing = False
        self._line: Line | None = None
        """Where the run went on, if it went back since they were made."""
        self._engines: Engines | None = None
        """All of the policy's engines, and which of them serve nothing more, if that changed since they were made."""
        self.lost_time = LostTime(runtime.clock.now)
        self.tell: EventSink = lambda kind, data: None
        self.began: Callable[[Workers[Any], int], None] = lambda workers, rank: None
        """Told of each worker that is there, or there again, before anything comes aboard."""
        self.tokens: Mapping[str, str] = {}
        """Those that reward servers are sent, by environment variable."""
        workers.changed.listen(self._look)

    async def begin(self) -> None:
        """Have all workers open their parts; one that is lost is made anew. Raises WorkerError, and WorkerLost of one
        that is lost each time."""
        for seat in self._seats:
            await anew_if_lost(partial(self._first, seat), self._runtime.clock)

    async def _first(self, seat: Seat, losses: int) -> None:
        if losses:
            await self._restart(seat)
        await self._begin(seat)

    @property
    def count(self) -> int:
        """Of those that are to be there."""
        return sum(not seat.leaves for seat in self._seats)

    async def add(self, spec: object) -> None:
        """One worker more. Raises WorkerError, WorkerLost."""
        rank = await self.workers.add(spec)
        seat = Seat(rank, self._writers.begin(), LossWindow(self._often))
        try:
            await self._begin(seat)
        except BaseException:
            await self._leave(seat)
            raise
        self._seats.append(seat)
        self._changed.notify()
        self._look()

    async def leave(self) -> None:
        """The worker that came last plays what it has aboard, takes nothing more, and ends. Where that takes too long,
        or this is cancelled, it stays, and plays on. Raises NothingToTrain, WaitTimeout."""
        seat = [seat for seat in self._seats if not seat.leaves][-1]
        seat.leaves = True
        self._changed.notify()
        try:
            await self._until(lambda: seat.is_up and not seat.aboard)  # one that is lost comes back first
        except BaseException:
            seat.leaves = False
            self._changed.notify()
            raise
        seat.is_up = False
        await self._leave(seat)

    async def _leave(self, seat: Seat) -> None:
        await self.workers.leave(seat.rank)
        self._writers.end(seat.writer)

    async def engines_changed(self, handles: Sequence[Handle], dropped: Sequence[int]) -> None:
        """Tell all workers which engines the policy has. Raises WorkerError."""
        self._engines = tuple(handles), tuple(dropped)
        for seat in self._seats:
            if seat.is_up:
                with suppress(WorkerLost):  # it is told when it comes back
                    await self._tell_engines(seat)

    async def _tell_engines(self, seat: Seat) -> None:
        if seat.engines is not self._engines and self._engines is not None:
            seat.engines = self._engines
            await self.workers.call("engines_changed", *self._engines, rank=seat.rank, what="a rollout worker to hear")

    async def close(self) -> None:
        """End them. What they have put is lost."""
        self._closing = True
        await self.workers.close()

    async def go_back(self, begun: Version, last_kept: Mapping[int, int]) -> None:
        """Tell all workers that the run goes on from `begun`; see `Lineage.go_back`. Raises WorkerError."""
        self._line = begun, last_kept
        for seat in self._seats:
            if seat.is_up:
                with suppress(WorkerLost):  # it is told when it comes back
                    await self._tell_line(seat)

    @asynccontextmanager
    async def aboard(self, key: GroupKey, keeper: str = "") -> AsyncGenerator[Seat]:
        """A seat for the group, alone if it has to be. `keeper`: whose seat is taken if it may be."""
        alone = self._losses.is_alone(key)
        seat = await self._chosen(key, keeper, alone=alone)
        try:
            if alone:
                await self._until(lambda: seat.is_up and not seat.aboard)
            if not seat.aboard:
                seat.since = self._runtime.clock.now()
            seat.aboard.append(key)
            try:
                yield seat
            finally:
                seat.aboard.remove(key)
        finally:
            if seat.alone == key:
                seat.alone = None
            self._changed.notify()

    async def _chosen(self, key: GroupKey, keeper: str, *, alone: bool) -> Seat:
        def free() -> list[Seat]:
            return [seat for seat in self._seats if seat.is_up and seat.alone is None and not seat.leaves]

        await self._until(lambda: bool(free()))
        seat = min(free(), key=lambda seat: (f"rollout/{seat.rank}" != keeper, len(seat.aboard), seat.rank))
        if alone:
            seat.alone = key
        return seat

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Raises NothingToTrain once the workers are given up, and what their return could not be recorded for."""
        await self._changed.wait_until(
            lambda: condition() or self._given_up is not None,
            self._runtime.clock,
            _PATIENCE_S,
            lambda: "a rollout worker",
        )
        if self._given_up is not None:
            raise self._given_up

    def finished(self, seat: Seat) -> None:
        seat.blame.finished()
        seat.since = self._runtime.clock.now()

    def _lost(self, seat: Seat) -> None:
        """What it was at is lost, or it is back."""
        self.lost_time.lost(seat.since)
        seat.since = self._runtime.clock.now()

    async def gone(self, seat: Seat, life: int) -> None:
        """Until nothing is left of the worker that had this life, or it is given up. Whether the next one has room is
        for whoever comes aboard it: others play meanwhile."""
        self._look()
        await self._until(lambda: seat.cleared >= life)

    def _look(self) -> None:
        """Have those come back that were lost."""
        for seat in self._seats:
            if seat.is_up and seat.rank in self.workers.lost and not self._closing:
                seat.is_up = False
                self._lost(seat)
                reason = self.workers.lost[seat.rank]
                self._runtime.spawn(self._bring_back(seat, reason, (*seat.aboard,)), f"return of rollout/{seat.rank}")

    async def _bring_back(self, seat: Seat, reason: str, aboard: Sequence[GroupKey]) -> None:
        try:
            await self._make_anew(seat, reason, aboard)
        except Exception as error:  # a record that cannot be written: whoever waits for the worker must hear of it
            self._given_up = error
        self._changed.notify()

    async def _make_anew(self, seat: Seat, reason: str, aboard: Sequence[GroupKey]) -> None:
        """`aboard`: when it was lost. Raises NothingToTrain, StoreError."""
        await self.workers.cleared(seat.rank)
        seat.cleared = seat.life
        self._changed.notify()
        counts = True
        while not seat.is_up and not self._closing:
            name = f"rollout/{seat.rank}"
            self.tell("worker_lost", {"worker": name, "message": f"{name} is made anew: {reason}"})
            if counts:
                pause_s, aboard = self._pause_after(seat, reason, aboard), ()
            await self._runtime.clock.sleep(pause_s)
            try:
                await self._restart(seat)
                await self._begin(seat)
            except (WorkerError, WorkerLost, WaitTimeout, OSError) as error:
                reason = str(error)
                # A node that is gone is no fault of the worker's, and whoever has a place plays on.
                counts = not (isinstance(error.__cause__, NoRoom) and any(each.is_up for each in self._seats))

    def _pause_after(self, seat: Seat, reason: str, aboard: Sequence[GroupKey]) -> float:
        """Seconds, after one loss more. Raises NothingToTrain."""
        failures, rows = seat.blame.lost(aboard), rows_of(aboard)
        too_often = seat.losses.lost(self._runtime.clock.now(), rows, self._losses.are_reason)
        following = after_failure(ROLLOUT_WORKER, failures)
        if following.measure is Measure.STOP:
            too_often = f"{failures} times in a row"
        if too_often is not None:
            raise NothingToTrain(
                f"rollout worker {seat.rank} was lost {too_often}, the last time so: {reason}; "
                "mend that (rollout.workers=0 plays in the run's own process, for a debugger), and --resume the run"
            )
        return following.pause_s

    async def _restart(self, seat: Seat) -> None:
        await self.workers.restart(seat.rank)
        self._writers.end(seat.writer)
        seat.writer = self._writers.begin()

    async def _begin(self, seat: Seat) -> None:
        given = seat.writer, self.tokens
        await self.workers.call("begin", *given, rank=seat.rank, what="a rollout worker", seconds=_BEGIN_S)
        seat.line = seat.engines = None
        while seat.line is not self._line or seat.engines is not self._engines:  # they may change while it is told
            await self._tell_line(seat)
            await self._tell_engines(seat)
        if seat.life:
            self._lost(seat)
        seat.life += 1
        self.began(self.workers, seat.rank)
        seat.is_up = True
        self._changed.notify()
        self._look()

    async def _tell_line(self, seat: Seat) -> None:
        if seat.line is not self._line and self._line is not None:
            seat.line = self._line
            begun, last_kept = self._line
            await self.workers.call(
                "go_back", begun, dict(last_kept), rank=seat.rank, what="a rollout worker to go back"
            )
