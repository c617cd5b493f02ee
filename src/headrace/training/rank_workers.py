"""The ranks of one model: workers, or the one on a lane of this process."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

from headrace.algorithms.pieces import PieceError
from headrace.config import ConfigError
from headrace.config.values.hosts import is_loopback
from headrace.observe.spent import AtWork
from headrace.runtime.progress import Standing
from headrace.runtime.protocol import Clock, Services, WaitTimeout
from headrace.runtime.together import to_the_end, together
from headrace.runtime.workers import WorkerError, WorkerLost, Workers
from headrace.training.absent_replicas import AbsentReplicas
from headrace.training.idle_losses import IdleLosses
from headrace.training.layouts.ranks import WHOLE, Layout
from headrace.training.protocol import CheckpointError
from headrace.training.rank import TrainerRank
from headrace.training.replicas import At
from headrace.training.rows.spans import StalenessError
from headrace.training.stuck_ranks import who_hangs
from headrace.weights.addresses import LOOPBACK
from headrace.weights.plane import WeightError

logger = logging.getLogger(__name__)

_LOST_S = 20.0
"""In which it is known which rank it was that others do not hear of: a cluster tells of a lost node within 15."""

BESIDE_ITS_LANE = frozenset(("send", "write_state", "write_reference"))
"""Methods of a rank that wait for another lane's work: its own may compute meanwhile, or rest."""
_MEETING = frozenset(("meet", "pair"))
"""In which replicas find each other: who fails has no pass that another waits in."""
_ALL = "all"

_ERRORS: dict[str, type[Exception]] = {
    each.__name__: each for each in (CheckpointError, ConfigError, OSError, PieceError, StalenessError, WeightError)
}
"""Errors of a rank in another process that are raised again under their own class; others are WorkerError."""


class Ranks(Protocol):
    """The ranks of a group."""

    @property
    def layout(self) -> Layout:
        """How many there are, and what each has."""

    @property
    def left(self) -> Sequence[int]:
        """Ranks that take part, and are not lost."""

    @property
    def whole(self) -> Sequence[int]:
        """Replicas that take part, and of which no rank is lost."""

    @property
    def present(self) -> Sequence[int]:
        """Replicas that take part: all but those that the others go on without."""

    async def call(self, method: str, *args: Any, what: str) -> Any:
        """The answer of `method` of the `TrainerRank` of the first rank that takes part."""

    async def each(self, method: str, args: Mapping[int, Sequence[Any]], *, what: str) -> dict[int, Any]:
        """Call `method` on the ranks in `args`, on all at once. Their answers, by rank."""

    async def answered(self, method: str, args: Mapping[int, Sequence[Any]], *, what: str) -> dict[int, Any]:
        """As `each`, for what a replica does without the others: the answers of those that lose no rank in it."""

    def busy_s(self, name: str) -> dict[str, float]:
        """Seconds in which any rank was at work, by `name`, and of several ranks those of each, as `name/1`; those that
        it waited for others within a pass are among them. Nothing where whoever gives out the lane counts."""


def who_saves(ranks: Ranks) -> Sequence[int]:
    """The ranks of the first replica that is whole. Where none is, those of the first one that takes part, whose loss
    is raised then: a checkpoint that nobody writes would pass for one."""
    return ranks.layout.members((*ranks.whole, *ranks.present)[0])


def ranks_of(ranks: Ranks) -> Sequence[int]:
    """Those that take part."""
    present = ranks.present
    return [rank for rank in range(ranks.layout.size) if ranks.layout.within(rank)[0] in present]


class RankHere:
    """The only rank, an object of this process."""

    layout = WHOLE
    left = whole = present = (0,)

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

    answered = each

    def busy_s(self, name: str) -> dict[str, float]:
        """See `Ranks.busy_s`."""
        return {}


class RankWorkers:
    """Ranks that are workers. The exception of one in this process is raised as it is.

    Where a replica is several ranks, each with a part of the model, they make every pass together: once one of them is
    lost, or a function of the user's own fails in it, the others of its replica are of no use, and are ended. Other
    replicas finish what they are at, and stay."""

    def __init__(
        self,
        workers: Workers[Any],
        clock: Clock,
        seconds: float,
        layout: Layout = WHOLE,
        *,
        host: str = LOOPBACK,
        trains: bool = True,
    ) -> None:
        """Nothing is to be asked of them before `come_together`. `seconds`: how long one waits for another. `host`: an
        address on the network of their machines, over which they speak where they are on several; on one they use
        loopback. `trains`: False where they only score, and replicas exchange nothing."""
        self.layout = layout
        self._trains = trains
        self._workers = workers
        self._clock = clock
        self._seconds = seconds
        self._host = host
        self._ended: dict[int, WorkerLost] = {}
        """Ranks that were ended because another was lost, each with the loss of that one."""
        self.absent = AbsentReplicas(self._make, self._has_all)
        self.idle_losses = IdleLosses(workers.changed, clock, seconds, self._losses)
        self._strangers: set[int] = set()
        """Replicas that are made anew, whose ranks have not come together yet."""
        self._stuck: dict[int, WorkerLost] = {}
        """By replica, where a rank was stuck: the loss of the one that hangs."""
        self._blaming = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._busy = AtWork(clock.now)

    @property
    def names(self) -> Sequence[str]:
        """Those of the workers, by rank."""
        return [handle.worker for handle in self._workers.handles]

    @property
    def left(self) -> Sequence[int]:
        """See `Ranks.left`."""
        return [rank for rank in ranks_of(self) if rank not in self._workers.lost]

    @property
    def whole(self) -> Sequence[int]:
        """See `Ranks.whole`."""
        return [replica for replica in self.present if self._has_all(replica)]

    @property
    def present(self) -> Sequence[int]:
        """See `Ranks.present`."""
        return [replica for replica in range(self.layout.model_replicas) if replica not in self.absent]

    @property
    def absent_workers(self) -> Mapping[str, str]:
        """Workers of replicas that are absent, each with the reason."""
        return {name: why for replica, why in self.absent.why.items() for name in self.names_of([replica])}

    def names_of(self, replicas: Iterable[int]) -> list[str]:
        """Those of their workers."""
        return [self._workers.handles[rank].worker for each in replicas for rank in self.layout.members(each)]

    @property
    def _lost(self) -> Mapping[int, str]:
        """Ranks that take part, and are lost, each with the reason."""
        taking_part = ranks_of(self)
        return {rank: reason for rank, reason in self._workers.lost.items() if rank in taking_part}

    def _losses(self) -> dict[int, WorkerLost]:
        """As `_lost`; of one that was ended because another was lost the loss of that one."""
        handles = self._workers.handles
        return {
            rank: self._ended.get(rank) or WorkerLost(rank, reason, worker=handles[rank].worker)
            for rank, reason in self._lost.items()
        }

    def _has_all(self, replica: int) -> bool:
        return not any(rank in self._workers.lost for rank in self.layout.members(replica))

    def busy_s(self, name: str) -> dict[str, float]:
        """See `Ranks.busy_s`."""
        found = {name: self._busy.seconds(_ALL)}
        if self.layout.size > 1:
            found |= {f"{name}/{rank}": self._busy.seconds(rank) for rank in range(self.layout.size)}
        return found

    async def come_together(self, replicas: Sequence[int] | None = None) -> None:
        """Have the ranks of a replica find each other, and the replicas that take part, too. `replicas`: those whose
        ranks are new; all unless given. Raises WorkerLost."""
        layout = self.layout
        if layout.joint:
            new = range(layout.model_replicas) if replicas is None else replicas
            await together(self._come_together(replica) for replica in new)
        if layout.model_replicas > 1 and self._trains:
            present = self.present
            at = await self._meeting_of(ranks_of(self))
            told = {
                rank: (number, len(present), at, self._seconds)
                for number, replica in enumerate(present)
                for rank in layout.members(replica)
            }
            await self.each("pair", told, what="the replicas to find each other")

    async def restart_broken(self) -> None:
        """Make each replica anew that has lost a rank, or has not come together. Raises WorkerLost."""
        async with self.in_turn():
            whole = set(self.whole) - self._strangers
            await self.restart([replica for replica in range(self.layout.model_replicas) if replica not in whole])

    @asynccontextmanager
    async def in_turn(self) -> AsyncIterator[None]:
        """Meanwhile nobody else has ranks make passes, or makes them anew, where several of them make each together:
        asked by two callers, they would begin two passes in different orders, and wait for each other."""
        if not self.layout.joint:
            yield
            return
        async with self._turn:
            yield

    async def restart(self, replicas: Sequence[int] | None = None) -> list[str]:
        """Make these replicas anew from their specs; all unless given. Returns the names of their workers. Raises
        WorkerLost."""
        if replicas is None:
            self.absent.forget()
        those = range(self.layout.model_replicas) if replicas is None else replicas
        await together(self._make(replica) for replica in those)
        await self._joined(those)
        return self.names_of(those)

    async def renew(self, replicas: Collection[int]) -> Sequence[int]:
        """As `restart`, beside others that are left, which go on without those for which no node has room, and without
        those that do not meet them where they are now: these are absent. Returns the replicas that are new. Raises
        WorkerLost."""
        those = await self.absent.renew(replicas)
        try:
            await self._joined(those)
        except (WorkerError, WaitTimeout, ConfigError, OSError) as error:
            if not those:
                raise
            logger.warning("%s cannot meet the other ranks: %s", ", ".join(self.names_of(those)), error)
            await self._leave_out(those, f"it cannot meet the others: {error}")
            await self._joined(())
            return ()
        return those

    async def _leave_out(self, replicas: Sequence[int], why: str) -> None:
        self.absent.refuse(replicas, why)
        for rank in (rank for each in replicas for rank in self.layout.members(each)):
            await self._workers.kill(rank, why)

    async def _make(self, replica: int) -> None:
        """Its ranks anew. Raises WorkerLost."""
        self._strangers.add(replica)
        ranks = self.layout.members(replica)
        await together(self._workers.restart(rank) for rank in ranks)
        for rank in ranks:
            self._ended.pop(rank, None)
        self._stuck.pop(replica, None)

    async def _joined(self, replicas: Sequence[int]) -> None:
        await self.come_together(replicas)
        self._strangers.difference_update(replicas)

    async def call(self, method: str, *args: Any, what: str) -> Any:
        """See `Ranks.call`. Raises WorkerLost."""
        first = ranks_of(self)[0]
        return (await self.each(method, {first: args}, what=what))[first]

    async def each(
        self, method: str, args: Mapping[int, Sequence[Any]], *, what: str, seconds: float | None = None
    ) -> dict[int, Any]:
        """See `Ranks.each`; `seconds`: see `Workers.call`. Raises the WorkerLost of the rank that was lost first, also
        where others only report that one does not answer them."""
        found = await self._outcomes(method, args, what, seconds)
        for outcome in found.values():
            if isinstance(outcome, WorkerLost):
                raise outcome
        return found

    async def answered(self, method: str, args: Mapping[int, Sequence[Any]], *, what: str) -> dict[int, Any]:
        """See `Ranks.answered`. Raises WorkerLost."""
        found = await self._outcomes(method, args, what)
        lost = {self.layout.within(rank)[0]: one for rank, one in found.items() if isinstance(one, WorkerLost)}
        there = {rank: answer for rank, answer in found.items() if self.layout.within(rank)[0] not in lost}
        if not there:
            raise next(iter(lost.values()))
        return there

    async def _come_together(self, replica: int) -> None:
        members = self.layout.members(replica)
        at, heads = await self._meeting_of(members), self.layout.heads
        told = {rank: (place, at, self._seconds, rank in heads) for place, rank in enumerate(members)}
        await self.each("come_together", told, what="the ranks to come together")

    async def _meeting_of(self, ranks: Sequence[int]) -> At:
        """The address at which the first of these ranks waits for the others."""
        host, first = LOOPBACK, ranks[0]
        if not is_loopback(self._host):
            seen = await self.each("sees", dict.fromkeys(ranks, ()), what="where it is")
            if not all(seen[first].shares_loopback(each) for each in seen.values()):
                host = self._host
        at: At = (await self.each("meet", {first: (self._seconds, host)}, what="a place to meet"))[first]
        return at

    async def _outcomes(
        self, method: str, args: Mapping[int, Sequence[Any]], what: str, seconds: float | None = None
    ) -> dict[int, Any]:
        """Of each rank its answer, or the loss that kept it from one; other errors are raised. Of several ranks all
        have ended when this returns, also where the caller is cancelled: none leaves the others alone in a joint
        pass."""
        asked = [self._outcome(rank, method, given, what, seconds) for rank, given in args.items()]
        if self.layout.size > 1:
            asked = [to_the_end(each) for each in asked]
        with self.idle_losses.asking(args):
            return dict(zip(args, await together(asked), strict=True))

    async def _outcome(self, rank: int, method: str, args: Sequence[Any], what: str, seconds: float | None) -> Any:
        try:
            return await self._asked(rank, method, args, what, seconds)
        except WorkerLost as lost:
            loss = self._ended.get(rank) or await self._cause(lost, method)
            await self._end_with(rank, loss)
            return loss
        except PieceError as error:
            # The user's own, within a pass: a stage may wait for what this one would have given it.
            await self._end_for(rank, type(error).__name__)
            raise
        except WorkerError as error:
            if self.layout.size == 1 or not error.is_fault:
                raise
            with suppress(WaitTimeout):
                await self._workers.changed.wait_until(
                    lambda: bool(self._lost), self._clock, _LOST_S, lambda: "a rank's end"
                )
            if (told := self._ended.get(rank)) is not None:
                return told  # meanwhile, by the call of the one that is lost
            for other, reason in self._lost.items():
                if other not in self._ended:
                    return await self._cause(
                        WorkerLost(other, reason, worker=self._workers.handles[other].worker), method
                    )
            if method not in _MEETING:
                await self._end_for(rank, error.type)
            raise

    async def _cause(self, lost: WorkerLost, method: str) -> WorkerLost:
        """`lost`, or of one that was stuck in a pass the loss of the rank that hangs."""
        standing = Standing.told_in(lost.reason)
        if standing is None or not self.layout.joint or method in BESIDE_ITS_LANE:
            return lost
        replica = self.layout.within(lost.rank)[0]
        async with self._blaming:
            if replica not in self._stuck:
                self._stuck[replica] = await who_hangs(self._workers, self.layout, lost, standing)
            return self._stuck[replica]

    async def _end_for(self, rank: int, error: str) -> None:
        """As `_end_with`: since it raised an error of this name."""
        await self._end_with(rank, WorkerLost(rank, f"it raised {error}", worker=self._workers.handles[rank].worker))

    async def _end_with(self, rank: int, loss: WorkerLost) -> None:
        """End the others of its replica, where they make passes together: some may wait for it until a deadline."""
        if not self.layout.joint:
            return
        for mate in self.layout.members(self.layout.within(rank)[0]):
            is_here = mate != rank and mate not in self._workers.lost
            if mate != loss.rank and (mate == rank or is_here):
                self._ended[mate] = loss
            if is_here:
                alone = f"it has a part of the model alone, since {loss}"
                await self._workers.kill(mate, loss.reason if mate == loss.rank else alone)

    async def _asked(self, rank: int, method: str, args: Sequence[Any], what: str, seconds: float | None) -> Any:
        try:
            with self._busy.at_it(*(() if method in BESIDE_ITS_LANE else (_ALL, rank))):
                return (await self._workers.call(method, *args, rank=rank, what=what, seconds=seconds))[0]
        except WorkerError as error:
            own = error.__cause__
            if not isinstance(own, Exception):
                if error.type in _ERRORS:
                    raise _ERRORS[error.type](error.text) from error
                raise
        raise own  # outside of `except`: else each would be the context of the other
