"""The relays of a run's weight plane: which are needed, made, and told who takes versions from them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from headrace.config import ConfigError, TrainConfig
from headrace.config.values.hosts import is_loopback
from headrace.controller.building.processors import silence_of
from headrace.controller.building.relay_users import RelaySupply, RelayUsers
from headrace.engines.pool import Came, EnginePool, Hires
from headrace.engines.protocol import Engine
from headrace.engines.remote import RemoteEngine
from headrace.roles.columns.frozen import AskedModel
from headrace.roles.workers.relay import RelaySpec, RelayWorker
from headrace.runtime.protocol import Runtime
from headrace.runtime.together import together
from headrace.runtime.workers import Handle, Placement
from headrace.training.group import TrainerGroup
from headrace.weights.addresses import LOOPBACK
from headrace.weights.relay.journey import SOURCE
from headrace.weights.relay.relays import Relays
from headrace.weights.seen import CPU, Seen, seen_here


async def weight_relays(
    trainer: TrainerGroup,
    engines: EnginePool,
    proximal: AskedModel | None,
    config: TrainConfig,
    runtime: Runtime,
    in_memory: Callable[[str], Path],
) -> Relays | None:
    """By which versions of `trainer` reach those that do not see its memory, or with `weights.transport: collective`
    each. None where nobody needs them, nor may later: workers that have all been seen near this process stay there.
    Raises ConfigError, WorkerError, WorkerLost, WaitTimeout."""
    source = await trainer.sees()
    ends = await _ends(engines, proximal)
    users = RelayUsers(trainer.leaves_from, source, ends, each=config.weights.transport == "collective")
    here = seen_here(CPU)
    if not users.by_rank and all(here.shares_memory(each) for each in (source, *ends.values())):
        return None
    away = [name for name, end in ends.items() if not source.shares_loopback(end)]
    if away and is_loopback(config.weights.host):
        raise ConfigError(
            f"weights have to reach {', '.join(away)} on another machine than the trainer's, and weights.host is "
            f"{config.weights.host!r}; set it to an address of the trainer's machine that the others reach"
        )
    spec = RelaySpec(str(in_memory("relays")))
    specs = [spec] * (1 + len(users.by_rank))
    workers = await runtime.start(RelayWorker, specs, _where(config, users))
    relays = Relays(
        workers,
        runtime.clock,
        config.runtime.stall_timeout_s,
        host=LOOPBACK if is_loopback(config.weights.host) else config.weights.host,
        deltas=bool(away) if config.weights.deltas is None else config.weights.deltas,
        summed=bool(away),
        device_of=None if config.weights.relay_backend == "gloo" else users.device_of,
    )
    await relays.take_in(SOURCE)
    for rank, user in users.by_rank.items():
        await relays.take_in(rank, [user])

    async def see_source() -> tuple[str, Seen]:
        return trainer.leaves_from, await trainer.sees()

    def is_lost(worker: str) -> bool:
        asked = zip(engines.handles, engines.members, strict=False)
        dead = [handle.worker for handle, member in asked if member.engine.failure is not None]
        return worker in dead or (proximal is not None and worker in proximal.lost)

    supply = RelaySupply(users, relays, workers, spec, runtime.clock, see_source, is_lost)
    trainer.goes_on(relays, supply.look_again)
    engines.came = _supplying(supply)
    if proximal is not None and proximal.returns is not None:
        proximal.returns.once_back = supplying_scorer(supply, proximal)
    if engines.hires is not None:
        engines.hires = HiresWithRelay(engines, engines.hires, supply)
    return relays


async def _ends(engines: EnginePool, proximal: AskedModel | None) -> dict[str, Seen]:
    """Of each worker that takes the policy's versions where it is."""
    found = {}
    for handle, member in zip(engines.handles, engines.members, strict=True):
        if isinstance(member.engine, RemoteEngine):
            found[handle.worker] = await member.engine.sees()
    if proximal is not None:
        found |= dict(zip(proximal.workers, await proximal.sees(), strict=True))
    return found


def _where(config: TrainConfig, users: RelayUsers) -> Placement:
    return Placement(
        process=True,
        threads=1,
        deadline_s=config.runtime.stall_timeout_s,
        silence=silence_of(config),
        limits=config.runtime.stuck.limits,
        beside=users.beside,
    )


def _supplying(supply: RelaySupply) -> Came:
    async def came(engine: Engine, worker: str) -> None:
        if isinstance(engine, RemoteEngine):
            await supply.supply(worker, await engine.sees())

    return came


def supplying_scorer(supply: RelaySupply, model: AskedModel) -> Callable[[], Awaitable[None]]:
    """As an engine that came, a scorer that is back: all of its workers."""

    async def back() -> None:
        ends = zip(model.workers, await model.sees(), strict=True)
        await together(supply.supply(worker, end) for worker, end in ends)

    return back


class HiresWithRelay:
    """`Hires`: an engine that leaves takes its relay with it."""

    def __init__(self, pool: EnginePool, hires: Hires, supply: RelaySupply) -> None:
        self._pool = pool
        self._hires = hires
        self._supply = supply

    @property
    def kind(self) -> str:
        """See `Hires.kind`."""
        return self._hires.kind

    async def hire(self) -> tuple[Engine, Handle]:
        """See `Hires.hire`."""
        return await self._hires.hire()

    async def release(self, index: int) -> None:
        """See `Hires.release`."""
        worker = self._pool.handles[index].worker
        await together([self._hires.release(index), self._supply.let_go(worker)])
        await self._supply.let_go(worker)  # one that was being made anew may have been given another meanwhile
