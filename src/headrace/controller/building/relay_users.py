"""Who takes versions from a relay, and beside whom each relay is: as workers come, and are made anew elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from headrace.roles.workers.relay import RelaySpec
from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.runtime.together import to_the_end
from headrace.runtime.workers import WorkerError, WorkerLost, Workers
from headrace.weights.relay.journey import SOURCE
from headrace.weights.relay.relays import Relays
from headrace.weights.seen import CPU, Seen, needs_relay

logger = logging.getLogger(__name__)

_THERE_S = 30.0
"""In which a relay is made anew, and sent a version, as a rule: who waits so long would be made anew in vain."""


class RelayUsers:
    """Workers that take versions, and those of them that have a relay beside them."""

    def __init__(self, trainer: str, source: Seen, ends: Mapping[str, Seen], *, each: bool) -> None:
        """`trainer`: the worker beside which the source's relay is. `source`: where the trainer is. `ends`: where those
        are that take its versions, by their workers' names. `each`: see `needs_relay`."""
        self.source = source
        self.ends = dict(ends)
        self._each = each
        self._beside = {SOURCE: trainer}
        self._beside |= dict(enumerate((name for name, end in ends.items() if self.needs(end)), start=1))
        self._coming = ""

    @property
    def by_rank(self) -> Mapping[int, str]:
        """Who has a relay, by its rank, the source's apart."""
        return {rank: worker for rank, worker in self._beside.items() if rank != SOURCE}

    def beside(self, rank: int) -> str:
        """See `Placement.beside`."""
        return self._beside.get(rank, self._coming)

    def device_of(self, rank: int) -> str:
        """Of the weights of whoever the relay is beside: see `Seen.device`."""
        if rank == SOURCE:
            return self.source.device
        end = self.ends.get(self.beside(rank))
        return CPU if end is None else end.device

    def comes_from(self, trainer: str, source: Seen) -> None:
        """Versions come from this worker, there."""
        self._beside[SOURCE], self.source = trainer, source

    def comes(self, worker: str) -> None:
        """The next relay that is made is beside it."""
        self._coming = worker

    def has_come(self, rank: int, worker: str) -> None:
        """The relay of this rank is beside it."""
        self._beside[rank] = worker

    def needs(self, end: Seen) -> bool:
        """Whether one that is there takes versions from a relay."""
        return needs_relay(self.source, end, each=self._each)


class RelaySupply:
    """Has a relay come where one is needed, and leave where none is any more."""

    def __init__(
        self,
        users: RelayUsers,
        relays: Relays,
        workers: Workers[Any],
        spec: RelaySpec,
        clock: Clock,
        source: Callable[[], Awaitable[tuple[str, Seen]]],
        is_lost: Callable[[str], bool],
    ) -> None:
        """`relays`: on `workers`, of which more are made from `spec`. `source`: asks the trainer which of its workers
        versions come from, and where that is. `is_lost`: of one that takes versions, by its name: it is supplied once
        it is there again."""
        self._users = users
        self._relays = relays
        self._workers = workers
        self._spec = spec
        self._clock = clock
        self._see_source = source
        self._is_lost = is_lost
        self._turn = asyncio.Lock()

    async def supply(self, worker: str, end: Seen) -> None:
        """Give a worker that came, or was made anew there, what it takes versions from: the trainer's memory, or a
        relay beside it, once that has a version. Where there is none in time it goes without, and is told so when it
        asks for one. Whoever is cancelled waits until it is clear who has a relay: nobody else would end it."""
        await to_the_end(self._assign(worker, end))
        with suppress(WaitTimeout):  # those that are lost are made anew meanwhile, and are sent what they lack
            await self._relays.changed.wait_until(
                lambda: self._relays.has_newest(worker), self._clock, _THERE_S, lambda: f"the relay of {worker}"
            )

    async def let_go(self, worker: str) -> None:
        """It has left, and its relay leaves."""
        async with self._turn:
            self._users.ends.pop(worker, None)
            with suppress(WorkerError, WorkerLost, WaitTimeout):
                await self._relays.let_go(worker)

    async def look_again(self) -> None:
        """The trainer was made anew, perhaps on another machine. Raises WorkerError, WorkerLost, WaitTimeout."""
        (trainer, source), users = await self._see_source(), self._users
        moved = not source.shares_memory(users.source)
        users.comes_from(trainer, source)
        if moved:
            for worker, end in [*users.ends.items()]:
                if not self._is_lost(worker):
                    await self._assign(worker, end)

    async def _assign(self, worker: str, end: Seen) -> None:
        """See `supply`. A failure is told, and no more."""
        async with self._turn:
            self._users.ends[worker] = end
            has, needs = self._relays.rank_of(worker) is not None, self._users.needs(end)
            try:
                if has and not needs:
                    await self._relays.let_go(worker)
                elif not has and needs:
                    await self._make(worker)
                    await self._relays.mend()
            except (WorkerError, WorkerLost, WaitTimeout) as error:
                logger.warning("a relay of weights for %s is lost: %s", worker, error)

    async def _make(self, worker: str) -> None:
        """Raises WorkerError, WorkerLost, WaitTimeout."""
        self._users.comes(worker)
        rank = await self._workers.add(self._spec)
        self._users.has_come(rank, worker)
        try:
            await self._relays.take_in(rank, [worker])
        except (WorkerError, WorkerLost, WaitTimeout):
            with suppress(WorkerError, WorkerLost, WaitTimeout):  # nobody else would end it
                await self._workers.leave(rank)
            raise
