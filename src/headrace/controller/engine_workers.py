"""The engines as workers, in processes of their own or in this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.config import ConfigError, TrainConfig
from headrace.controller.planning.plan import Plan
from headrace.controller.processors import threads_of_worker
from headrace.engines.pool import EnginePool
from headrace.engines.protocol import Engine, EngineError, SwapMode
from headrace.engines.remote import PeerOfRank, RemoteEngine
from headrace.models.loading import resolve_device
from headrace.roles.workers.engine import EngineSpec, EngineWorker
from headrace.runtime.copying import is_copying
from headrace.runtime.protocol import Runtime
from headrace.runtime.workers import Placement, WorkerError, WorkerLost, Workers
from headrace.weights.plane import WeightReceiver
from headrace.weights.version import INITIAL

CLIENT = "controller"
"""By which the controller asks them."""


def are_workers(config: TrainConfig) -> bool:
    """Whether the engines are asked as workers: where they have processes of their own, and where tests have all that
    would cross between processes go through the codec. Else they are objects in this process: it costs less."""
    return config.engine.process or is_copying()


async def engine_workers(plan: Plan, runtime: Runtime, *, returns: bool) -> EnginePool:
    """See `load_engines`. Each loads its model itself. Raises ConfigError, EngineError. One in a process of its own
    comes back as version 0 where nothing newer was published; others need that published as well."""
    config = plan.config
    spec = EngineSpec(
        plan.weights,
        config.engine.dtype or config.model.dtype,
        str(resolve_device(config.model.device)),
        config.engine,
        plan.memory.cache,
    )
    where = Placement(
        process=config.engine.process, threads=threads_of_worker(config) if config.engine.process else None
    )
    try:
        workers = await runtime.start(EngineWorker, [spec] * config.engine.replicas, where)
    except WorkerError as error:
        raise (ConfigError if error.type == ConfigError.__name__ else EngineError)(error.text) from error
    except WorkerLost as error:
        raise EngineError(str(error)) from error

    pool: EnginePool | None = None

    def changed() -> None:
        if pool is not None:
            pool.changed.notify()

    def remote(rank: int) -> RemoteEngine:
        return RemoteEngine(PeerOfRank(workers, rank), runtime, CLIENT, rank=rank, changed=changed)

    revive = _Revive(workers, remote, anew=config.engine.process)
    pool = EnginePool(
        [remote(rank) for rank in range(config.engine.replicas)],
        runtime.clock,
        revive=revive if returns else None,
        return_deadline_s=config.engine.return_deadline_s,
        spread=config.engine.spread,
        handles=workers.handles,
    )
    return pool


class _Revive:
    """Brings back the engine of a rank."""

    def __init__(self, workers: Workers[Any], remote: Callable[[int], RemoteEngine], *, anew: bool) -> None:
        """`anew`: its process is begun again. Else the worker keeps its module's skeleton: nothing is loaded in this
        process while others compute."""
        self._workers = workers
        self._remote = remote
        self._anew = anew

    async def __call__(self, dead: Engine, receiver: WeightReceiver) -> Engine:
        """See `Revive`."""
        assert isinstance(dead, RemoteEngine)
        rank = dead.rank
        engine = self._remote(rank)
        if not self._anew and rank not in self._workers.lost:
            await dead.revive(receiver)
            await engine.attach()
            return engine
        try:
            await self._workers.restart(rank)
        except (WorkerError, WorkerLost) as error:
            raise EngineError(str(error)) from error
        await engine.start()
        latest = receiver.latest()
        if latest is not None and latest != INITIAL:
            await engine.update(receiver, SwapMode.RECOMPUTE)
        return engine
