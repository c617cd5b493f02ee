"""Who takes versions from a relay, and beside whom each relay is: as workers come, and are made anew elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from headrace.roles.workers.relay import RelaySpec
from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.runtime.workers import WorkerError, WorkerLost, Workers
from headrace.training.group import TrainerGroup
from headrace.weights.relay.relays import SOURCE, Relays
from headrace.weights.seen import Seen, needs_relay

logger = logging.getLogger(__name__)

_THERE_S = 30.0
"""In which a relay is made anew, and sent a version, as a rule: who waits so long would be made anew in vain."""


class RelaySeats:
    def __init__(self, trainer: TrainerGroup, source: Seen, ends: Mapping[str, Seen], *, each: bool) -> None:
        """`source`: where the trainer is. `ends`: where those are that take its versions, by their workers' names.
        `each`: see `needs_relay`."""
        self._trainer = trainer
        self._source = source
        self._ends = dict(ends)
        self._each = each
        self._beside = {SOURCE: f"{trainer.name}/0"}
        self._beside |= dict(enumerate((name for name, end in ends.items() if self._needs(end)), start=1))
        self._coming = ""
        self._turn = asyncio.Lock()

    @property
    def users(self) -> Mapping[int, str]:
        """Who has a relay at the beginning, by its rank, the source's apart."""
        return {rank: worker for rank, worker in self._beside.items() if rank != SOURCE}

    def beside(self, rank: int) -> str:
        """See `Placement.beside`."""
        return self._beside.get(rank, self._coming)

    def device_of(self, rank: int) -> str:
        """Of the weights of whoever the relay is beside: see `Seen.device`."""
        if rank == SOURCE:
            return self._source.device
        end = self._ends.get(self.beside(rank))
        return "cpu" if end is None else end.device

    def begin(self, relays: Relays, workers: Workers[Any], spec: RelaySpec, clock: Clock) -> None:
        """They are there."""
        self._clock = clock
        self._relays = relays
        self._workers = workers
        self._spec = spec

    async def seat(self, worker: str, end: Seen) -> None:
        """Give a worker that came, or was made anew there, what it takes versions from: the trainer's memory, or a
        relay beside it, once that has a version. Where there is none in time it goes without, and is told so when it
        asks for one."""
        await self._assign(worker, end)
        with suppress(WaitTimeout):  # those that are lost are made anew meanwhile, and are sent what they lack
            await self._relays.changed.wait_until(
                lambda: self._relays.has_newest(worker), self._clock, _THERE_S, lambda: f"the relay of {worker}"
            )

    async def let_go(self, worker: str) -> None:
        """It has left, and its relay leaves."""
        async with self._turn:
            self._ends.pop(worker, None)
            with suppress(WorkerError, WorkerLost, WaitTimeout):
                await self._relays.let_go(worker)

    async def look_again(self) -> None:
        """The trainer was made anew, perhaps on another machine. Raises WorkerError, WorkerLost, WaitTimeout."""
        source = await self._trainer.sees()
        moved = not source.shares_memory(self._source)
        self._source = source
        if moved:
            for worker, end in [*self._ends.items()]:
                await self._assign(worker, end)

    async def _assign(self, worker: str, end: Seen) -> None:
        """See `seat`. A failure is told, and no more."""
        async with self._turn:
            self._ends[worker] = end
            has = self._relays.rank_of(worker) is not None
            try:
                if has and not self._needs(end):
                    await self._relays.let_go(worker)
                elif not has and self._needs(end):
                    await self._make(worker)
                    await self._relays.mend()
            except (WorkerError, WorkerLost, WaitTimeout) as error:
                logger.warning("a relay of weights for %s is lost: %s", worker, error)

    async def _make(self, worker: str) -> None:
        """Raises WorkerError, WorkerLost, WaitTimeout."""
        self._coming = worker
        rank = await self._workers.add(self._spec)
        self._beside[rank] = worker
        try:
            await self._relays.take_in(rank, [worker])
        except (WorkerError, WorkerLost, WaitTimeout):
            with suppress(WorkerError, WorkerLost, WaitTimeout):  # nobody else would end it
                await self._workers.leave(rank)
            raise

    def _needs(self, end: Seen) -> bool:
        return needs_relay(self._source, end, each=self._each)
