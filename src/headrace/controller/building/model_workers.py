"""Workers that hold a model: on a lane of this process, or in processes of their own."""

from __future__ import annotations

from typing import Any, TypeVar

from headrace.config import ConfigError, TrainConfig
from headrace.controller.building.processors import often_of, silence_of, threads_of_worker
from headrace.roles.model_return import ModelReturn
from headrace.runtime.at_start import anew_if_lost
from headrace.runtime.protocol import Runtime
from headrace.runtime.workers import Placement, Worker, WorkerError, Workers
from headrace.training.layouts.ranks import Layout
from headrace.training.rank_workers import RankWorkers

W = TypeVar("W", bound=Worker)


async def scoring_ranks(
    kind: type[W], spec: object, runtime: Runtime, config: TrainConfig, layout: Layout
) -> tuple[RankWorkers, ModelReturn | None]:
    """Of a model that only scores; and what brings them back, where they have processes: nothing is loaded in this one
    while others compute. Raises as `started`."""
    workers = await started(kind, spec, runtime, config, layout.size)
    ranks = RankWorkers(
        workers, runtime.clock, config.runtime.stall_timeout_s, layout, host=config.weights.host, trains=False
    )

    async def together(losses: int) -> None:
        await (ranks.restart() if losses else ranks.come_together())

    await anew_if_lost(together, runtime.clock)
    if kind.kind not in config.scorer_processes:
        return ranks, None
    return ranks, ModelReturn(workers, runtime.clock, ranks.restart_broken, often_of(config))


async def started(kind: type[W], spec: object, runtime: Runtime, config: TrainConfig, count: int = 1) -> Workers[Any]:
    """So many workers of this kind, where the config has them. Each loads its model itself. Raises ConfigError,
    WorkerLost, WaitTimeout; in this process whatever loading raises."""
    process = kind.kind in (*config.trainer_processes, *config.scorer_processes)
    where = Placement(
        process=process,
        threads=threads_of_worker(config, kind.kind) if process else None,
        deadline_s=config.runtime.stall_timeout_s,
        silence=silence_of(config),
        limits=config.runtime.stuck.limits,
    )
    return await made(kind, spec, runtime, where, count)


async def made(kind: type[W], spec: object, runtime: Runtime, where: Placement, count: int) -> Workers[Any]:
    """As `started`, where the caller has them."""
    try:
        return await runtime.start(kind, [spec] * count, where)
    except WorkerError as error:
        own = error.__cause__
        if not isinstance(own, Exception):
            if error.type == ConfigError.__name__:
                raise ConfigError(error.text) from error
            raise
    raise own  # not while the other is handled: each would come of the other
