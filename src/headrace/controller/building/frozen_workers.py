"""The models that write log-probs, as workers."""

from __future__ import annotations

from headrace.config import TrainConfig
from headrace.controller.building.model_workers import model_return, started
from headrace.roles.columns.frozen import InWorker
from headrace.roles.workers.frozen import FrozenSpec, FrozenWorker
from headrace.runtime.protocol import Runtime


async def frozen_worker(kind: type[FrozenWorker], spec: FrozenSpec, runtime: Runtime, config: TrainConfig) -> InWorker:
    """Raises as `started`."""
    workers = await started(kind, spec, runtime, config)
    return InWorker(workers, kind.kind, model_return(kind.kind, workers, runtime, config))
