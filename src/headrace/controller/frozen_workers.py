"""The models that only score, as workers: on lanes of this process, or in processes of their own."""

from __future__ import annotations

from typing import Any

from headrace.config import ConfigError, TrainConfig
from headrace.controller.processors import threads_of_worker
from headrace.roles.frozen import InWorker
from headrace.roles.workers.frozen import FrozenSpec, FrozenWorker
from headrace.roles.workers.reward import RewardSpec, RewardWorker
from headrace.runtime.protocol import Runtime
from headrace.runtime.workers import Placement, WorkerError, Workers


async def frozen_worker(kind: type[FrozenWorker], spec: FrozenSpec, runtime: Runtime, config: TrainConfig) -> InWorker:
    """One of those that write log-probs. Raises as `started`."""
    return InWorker(await started(kind, spec, runtime, config), kind.kind)


async def started(
    kind: type[FrozenWorker] | type[RewardWorker], spec: FrozenSpec | RewardSpec, runtime: Runtime, config: TrainConfig
) -> Workers[Any]:
    """One worker of this kind, where the config has it. It loads its model itself. Raises ConfigError, WorkerLost,
    WaitTimeout."""
    process = kind.kind in config.scorer_processes
    where = Placement(
        process=process,
        threads=threads_of_worker(config) if process else None,
        deadline_s=config.runtime.stall_timeout_s,
    )
    try:
        return await runtime.start(kind, [spec], where)
    except WorkerError as error:
        if error.type == ConfigError.__name__:
            raise ConfigError(error.text) from error
        raise
