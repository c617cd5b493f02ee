"""The relays of a run's weight plane: which are needed, made, and told who takes versions from them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.config import ConfigError, TrainConfig
from headrace.config.values.hosts import is_loopback
from headrace.controller.building.processors import silence_s
from headrace.engines.pool import EnginePool, Hires
from headrace.engines.protocol import Engine
from headrace.engines.remote import RemoteEngine
from headrace.roles.columns.frozen import AskedModel
from headrace.roles.workers.relay import RelaySpec, RelayWorker
from headrace.runtime.protocol import Runtime, WaitTimeout
from headrace.runtime.together import together
from headrace.runtime.workers import Handle, Placement, WorkerError, WorkerLost, Workers
from headrace.training.group import TrainerGroup
from headrace.weights.relay.relays import Relays
from headrace.weights.seen import Seen, relays_needed, way_between

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"


async def weight_relays(
    trainer: TrainerGroup,
    engines: EnginePool,
    proximal: AskedModel | None,
    config: TrainConfig,
    runtime: Runtime,
    in_memory: Callable[[str], Path],
) -> Relays | None:
    """By which versions of `trainer` reach those that do not see its memory, or with `weights.transport: collective`
    each; None if nobody needs them. Raises ConfigError, WorkerError, WorkerLost, WaitTimeout."""
    source = await trainer.sees()
    ends = await _ends(engines, proximal)
    needed = relays_needed(source, ends, each=config.weights.transport == "collective")
    if not needed:
        return None
    spec = RelaySpec(str(in_memory("relays")))
    workers = await runtime.start(RelayWorker, [spec] * (1 + len(needed)), _where(config))
    seen: list[Seen] = await workers.call("sees", what="where relays are")
    for place, near in enumerate((source, *(ends[users[0]] for users in needed))):
        if way_between(near, seen[place]) == "collective":
            raise ConfigError(
                f"relay {place} of the weight plane is not on the machine of those that it serves, whose memory it "
                "has to see; place them on the trainer's node"
            )
    beyond = any(way_between(source, one) == "collective" for one in seen)
    host = config.weights.host if beyond else LOOPBACK
    if beyond and is_loopback(host):
        raise ConfigError(
            f"weights have to reach {', '.join(next(iter(needed)))} on another machine, and weights.host is {host!r}; "
            "set it to an address of the trainer's machine that the others reach"
        )
    deltas = beyond if config.weights.deltas is None else config.weights.deltas
    relays = Relays(workers, runtime.clock, config.runtime.stall_timeout_s, deltas=deltas, summed=beyond)
    for rank, users in enumerate(((), *needed)):
        await relays.take_in(rank, users, host if not rank else await _address(workers, rank, host))
    trainer.goes_on(relays)
    if engines.hires is not None:
        engines.hires = _HiresWithRelay(engines, engines.hires, relays, workers, spec, host)
    return relays


async def _address(workers: Workers[Any], rank: int, host: str) -> str:
    """That a relay speaks from, to others at `host`."""
    found: str = (await workers.call("address_towards", host, rank=rank, what="its address"))[0]
    return found


async def _ends(engines: EnginePool, proximal: AskedModel | None) -> dict[str, Seen]:
    """Of each worker that takes the policy's versions where it is."""
    found = {}
    for handle, member in zip(engines.handles, engines.members, strict=True):
        if isinstance(member.engine, RemoteEngine):
            found[handle.worker] = await member.engine.sees()
    if proximal is not None:
        found[proximal.worker] = await proximal.sees()
    return found


def _where(config: TrainConfig) -> Placement:
    return Placement(
        process=True,
        threads=1,
        deadline_s=config.runtime.stall_timeout_s,
        silence_s=silence_s(config),
        limits=config.runtime.stuck.limits,
    )


class _HiresWithRelay:
    """`Hires`: an engine that comes has a relay of its own, which leaves with it."""

    def __init__(
        self, pool: EnginePool, hires: Hires, relays: Relays, workers: Workers[Any], spec: RelaySpec, host: str
    ) -> None:
        self._pool = pool
        self._hires = hires
        self._relays = relays
        self._workers = workers
        self._spec = spec
        self._host = host

    async def hire(self) -> tuple[Engine, Handle]:
        """See `Hires.hire`. If no relay starts, it takes versions from the trainer's memory, or, where it does not see
        that, none."""
        made: list[int] = []
        hired: list[tuple[Engine, Handle]] = []

        async def hire() -> None:
            hired.append(await self._hires.hire())

        try:
            await together([hire(), self._make(made)])
        except BaseException:
            for rank in made:
                await self._workers.leave(rank)
            raise
        ((engine, handle),) = hired
        try:
            for rank in made:
                await self._relays.take_in(rank, [handle.worker], await _address(self._workers, rank, self._host))
            await self._relays.mend()
        except (WorkerError, WorkerLost, WaitTimeout) as error:
            logger.warning("the relay of weights for %s is lost: %s", handle.worker, error)
            if self._relays.rank_of(handle.worker) is None:  # nobody else would end it
                for rank in made:
                    with suppress(WorkerError, WorkerLost, WaitTimeout):
                        await self._workers.leave(rank)
        return engine, handle

    async def _make(self, made: list[int]) -> None:
        """The rank of another relay is added to `made`."""
        try:
            made.append(await self._workers.add(self._spec))
        except (WorkerError, WorkerLost, WaitTimeout) as error:
            logger.warning("a relay of weights did not start: %s", error)

    async def release(self, index: int) -> None:
        """See `Hires.release`."""
        await together([self._hires.release(index), self._let_go(self._pool.handles[index].worker)])

    async def _let_go(self, worker: str) -> None:
        with suppress(WorkerError, WorkerLost, WaitTimeout):
            await self._relays.let_go(worker)
