"""Engines as workers, on lanes of this process or in processes of their own: the policy's, and those of judges."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import torch

from headrace.config import ConfigError, EngineConfig, TrainConfig
from headrace.config.model import EngineSection
from headrace.controller.building.first_version import publish_first
from headrace.controller.building.processors import often_of, silence_of, threads_of_worker
from headrace.controller.building.server_specs import server_spec
from headrace.controller.planning.cache_memory import cache_of
from headrace.controller.planning.judges import own_judges
from headrace.controller.planning.plan import Plan
from headrace.controller.planning.role_devices import role_device
from headrace.engines.catching_up import caught_up, is_behind
from headrace.engines.embedded.cache_plan import CachePlan, CacheRoom
from headrace.engines.pool import EnginePool
from headrace.engines.protocol import Engine, EngineError
from headrace.engines.remote import START_S, RemoteEngine
from headrace.models.loading import resolve_device
from headrace.roles.actors.actor import TRAINER_LANE
from headrace.roles.workers.engine import EngineSpec, EngineWorker, JudgeEngineWorker, LentEngineWorker
from headrace.roles.workers.engine_host import EngineHost
from headrace.roles.workers.server_engine import ServerEngineWorker
from headrace.runtime.peer_of_rank import PeerOfRank
from headrace.runtime.protocol import Runtime
from headrace.runtime.signal import Signal
from headrace.runtime.workers import Handle, Placement, WorkerError, WorkerLost, Workers
from headrace.weights.plane import WeightPublisher, WeightReceiver

T = TypeVar("T")

CLIENT = "controller"
"""By which the controller asks them."""
_MEET_S = 1200.0
"""That may be spent on a server once it is up: its first token alone may take minutes."""


async def load_engines(
    plan: Plan, runtime: Runtime, folder: Path | None, *, returns: bool = True, plane: WeightPublisher | None = None
) -> EnginePool:
    """The policy's engines, each with weights of its own, not started. `folder`: of the run, for what servers print.
    `returns`: one that died comes back, where weights are published. `plane`: where no trainer publishes version 0, has
    it if an engine is to take it: one that is attached, or that comes back. Raises ConfigError, EngineError,
    WeightError, WaitTimeout."""
    config = plan.config
    process, attached = config.engine.apart, config.engine.attached
    if plane is not None and (attached or (returns and not process)):
        await runtime.compute(TRAINER_LANE, publish_first, plan, plane)
    asked = _Asked(runtime, _start_s(config.engine.sections))
    for section in config.engine.sections:
        kind, specs = _specs(plan, section, len(asked.places), folder, returns)
        asked.take(await _started(kind, specs, runtime, _where(config)))
    if config.engine.lent:
        _, (spec, *_) = _specs(plan, config.engine, 0, folder, returns, LentEngineWorker.kind)
        specs = [spec] * config.engine.lent
        asked.take(await _started(LentEngineWorker, specs, runtime, _where(config, "lent")))
    pool = asked.pool(
        revive=_Revive(asked, anew=process, attached=attached) if returns else None,
        return_deadline_s=config.engine.return_deadline_s,
        spread=config.engine.spread,
        attached=attached,
        lent=config.engine.lent,
        kill=asked.kill if process else None,
        often=often_of(config),
    )
    launched = next((section for section in config.engine.sections if not section.urls), None)
    if process and returns and launched is not None:
        pool.hires = _Hires(plan, launched, asked, folder)
    return pool


def _specs(
    plan: Plan, section: EngineSection, first: int, folder: Path | None, returns: bool, kind: str = EngineWorker.kind
) -> tuple[type[EngineHost[Any]], list[object]]:
    """Of the section's engines, of which the first is the run's engine `first`, and the class of their workers; of
    embedded ones, as workers of this `kind`."""
    count, config = section.count, plan.config
    if section.is_server:
        return ServerEngineWorker, [
            server_spec(plan, section, place, first + place, folder, returns) for place in range(count)
        ]
    memory, cache = plan.memory, cache_of(section, config, plan.memory.cache)
    found = memory.rooms.get(kind, cache)
    given = config.engine.model_copy(update={"max_concurrent_sequences": section.max_concurrent_sequences})
    device = role_device(config, kind)
    spec = engine_spec(plan.weights, given, config.model.dtype, device, cache=found, returns=returns)
    return EngineWorker, [spec] * count


async def load_judges(plan: Plan, runtime: Runtime, *, returns: bool = True) -> dict[str, EnginePool]:
    """The engines of judges that are models of their own, by the model's name; not started. Each computes on a lane of
    its own, beside the policy's, or where those have processes in one of its own. `returns` and what is raised: as with
    `load_engines`."""
    model, judges = plan.config.model, own_judges(plan.config.rewards)
    if not judges:
        return {}
    device = role_device(plan.config, JudgeEngineWorker.kind)
    specs = [engine_spec(own.path, own.engine, model.dtype, device, returns=returns) for own in judges]
    workers = await _started(JudgeEngineWorker, specs, runtime, _where(plan.config, "judge"))

    def pool(rank: int, path: str) -> EnginePool:
        asked = _Asked(runtime)
        asked.places.append((workers, rank))
        return asked.pool(
            revive=_Revive(asked, anew=plan.config.engine.apart) if returns else None,
            return_deadline_s=plan.config.engine.return_deadline_s,
            judge=path,
            often=often_of(plan.config),
        )

    return {own.path: pool(rank, own.path) for rank, own in enumerate(judges)}


async def load_engine(path: str, config: EngineConfig, dtype: str, runtime: Runtime) -> EnginePool:
    """One engine of the model at `path`, not started, that does not come back. Raises as `load_engines`."""
    spec = engine_spec(path, config, dtype, resolve_device("auto"))
    workers = await _started(EngineWorker, [spec], runtime, Placement(start_s=START_S))
    asked = _Asked(runtime)
    asked.take(workers)
    return asked.pool()


def engine_spec(
    path: str,
    config: EngineConfig,
    dtype: str,
    device: torch.device,
    *,
    cache: CachePlan | CacheRoom | None = None,
    returns: bool = False,
) -> EngineSpec:
    """`dtype`: of the run's models."""
    return EngineSpec(path, config.dtype or dtype, str(device), config, cache, returns)


def _start_s(sections: Sequence[EngineSection]) -> float:
    """In which an engine has to start: each server that is launched keeps its section's own limit on being up."""
    launched = [section for section in sections if section.is_server and not section.urls]
    return max([START_S, *(section.start_deadline_s + _MEET_S for section in launched)])


def _where(config: TrainConfig, kind: str = "engine") -> Placement:
    process = config.engine.apart
    return Placement(
        process=process,
        threads=threads_of_worker(config, kind) if process else None,
        deadline_s=config.runtime.stall_timeout_s,
        start_s=START_S,
        silence=silence_of(config),
        limits=config.runtime.stuck.limits,
    )


async def _started(
    kind: type[EngineHost[Any]], specs: Sequence[object], runtime: Runtime, where: Placement
) -> Workers[Any]:
    """Each loads its model itself."""
    return await _made(runtime.start(kind, specs, where))


async def _made(making: Awaitable[T]) -> T:
    """Raises ConfigError, EngineError."""
    try:
        return await making
    except WorkerError as error:
        if error.is_fault:
            raise  # with where it was raised
        raise (ConfigError if error.type == ConfigError.__name__ else EngineError)(error.text) from error
    except WorkerLost as error:
        raise EngineError(str(error)) from error


class _Asked:
    """The engines of workers, as the controller asks them."""

    def __init__(self, runtime: Runtime, start_s: float = START_S) -> None:
        """`start_s`: see `RemoteEngine`."""
        self.places: list[tuple[Workers[Any], int]] = []
        """Of each engine, its workers and its rank among them."""
        self._runtime = runtime
        self._start_s = start_s
        self._changed = Signal()
        """Notified when version or failure of one has."""
        self._pool: EnginePool | None = None

    def take(self, workers: Workers[Any]) -> None:
        """All of them, after those that are there."""
        self.places += [(workers, rank) for rank in range(len(workers.handles))]

    async def kill(self, number: int, reason: str) -> None:
        """See `Kill`."""
        workers, rank = self.places[number]
        await workers.kill(rank, reason)

    def engine(self, number: int) -> RemoteEngine:
        """The one at this place."""
        workers, rank = self.places[number]
        peer, worker = PeerOfRank(workers, rank), workers.handles[rank].worker
        return RemoteEngine(
            peer,
            self._runtime,
            CLIENT,
            rank=number,
            worker=worker,
            changed=self._changed.notify,
            start_s=self._start_s,
        )

    def pool(self, **more: Any) -> EnginePool:
        """Of all of them, which hears of their changes. `more`: see `EnginePool`."""
        handles = [workers.handles[rank] for workers, rank in self.places]
        engines = [self.engine(number) for number in range(len(self.places))]
        pool = EnginePool(engines, self._runtime.clock, handles=handles, **more)
        self._changed.listen(pool.changed.notify)
        self._pool = pool
        return pool

    async def came(self, engine: RemoteEngine, worker: str) -> None:
        """See `Came`. Raises EngineError."""
        if self._pool is not None and self._pool.came is not None:
            await self._pool.came(engine, worker)


class _Hires:
    """See `Hires`. Of the first section whose engines are the run's own."""

    def __init__(self, plan: Plan, section: EngineSection, asked: _Asked, folder: Path | None) -> None:
        self._plan = plan
        self._section = section
        self._asked = asked
        self._folder = folder
        places = [section.count for section in plan.config.engine.sections]
        self._workers = asked.places[sum(places[: plan.config.engine.sections.index(section)])][0]

    @property
    def kind(self) -> str:
        """See `Hires.kind`."""
        return self._section.kind

    async def hire(self) -> tuple[Engine, Handle]:
        """See `Hires.hire`."""
        number = len(self._asked.places)
        _, (spec, *_) = _specs(self._plan, self._section, number, self._folder, returns=True)
        rank = await _made(self._workers.add(spec))
        self._asked.places.append((self._workers, rank))
        return self._asked.engine(number), self._workers.handles[rank]

    async def release(self, index: int) -> None:
        """See `Hires.release`."""
        workers, rank = self._asked.places[index]
        with suppress(WorkerError, WorkerLost):
            await workers.leave(rank)


class _Revive:
    """Brings back an engine."""

    def __init__(self, asked: _Asked, *, anew: bool, attached: bool = False) -> None:
        """`anew`: its process is begun again, as version 0 where nothing newer was published. Else the worker keeps the
        module, or its skeleton: nothing is loaded in this process while others compute. `attached`: see
        `EnginePool`."""
        self._asked = asked
        self._anew = anew
        self._attached = attached

    async def __call__(self, dead: Engine, receiver: WeightReceiver | None) -> Engine:
        """See `Revive`."""
        assert isinstance(dead, RemoteEngine)
        workers, rank = self._asked.places[dead.rank]
        engine = self._asked.engine(dead.rank)
        if not self._anew:
            if rank in workers.lost:
                raise EngineError(
                    f"the worker of engine {dead.rank} ended ({workers.lost[rank]}), and no model is loaded in a "
                    "process in which others compute; resume the run to go on"
                )
            await dead.revive(receiver)
            await engine.attach()
            return engine
        try:
            await workers.restart(rank)
        except (WorkerError, WorkerLost) as error:
            raise EngineError(str(error)) from error
        await self._asked.came(engine, workers.handles[rank].worker)
        await engine.start(is_behind=is_behind(receiver, attached=self._attached))
        await caught_up(engine, receiver, attached=self._attached)
        return engine
