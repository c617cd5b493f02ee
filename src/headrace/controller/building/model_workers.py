"""Workers that hold a model, one of a kind: on a lane of this process, or in a process of their own."""

from __future__ import annotations

from typing import Any, TypeVar

from headrace.config import ConfigError, TrainConfig
from headrace.controller.building.processors import silence_s, threads_of_worker
from headrace.roles.model_return import ModelReturn
from headrace.runtime.protocol import Runtime
from headrace.runtime.workers import Placement, Worker, WorkerError, Workers

W = TypeVar("W", bound=Worker)


def model_return(kind: str, workers: Workers[Any], runtime: Runtime, config: TrainConfig) -> ModelReturn | None:
    """Of one that only scores, where it has a process: nothing is loaded in this one while others compute."""
    return ModelReturn(workers, runtime.clock) if kind in config.scorer_processes else None


async def started(kind: type[W], spec: object, runtime: Runtime, config: TrainConfig, count: int = 1) -> Workers[Any]:
    """So many workers of this kind, where the config has them. Each loads its model itself. Raises ConfigError,
    WorkerLost, WaitTimeout; in this process whatever loading raises."""
    process = kind.kind in (*config.trainer_processes, *config.scorer_processes)
    where = Placement(
        process=process,
        threads=threads_of_worker(config, kind.kind) if process else None,
        deadline_s=config.runtime.stall_timeout_s,
        silence_s=silence_s(config),
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
