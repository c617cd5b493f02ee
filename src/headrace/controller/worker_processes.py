"""Worker processes of a run: whether it has any, and what they leave to this one."""

from __future__ import annotations

from pathlib import Path

from headrace.config import TrainConfig
from headrace.controller.threads import available_threads, threads_of_engine
from headrace.runtime.process.processes import Processes


def worker_processes(config: TrainConfig, folder: Path | None, rollouts: int = 0) -> Processes | None:
    """Where a run has its worker processes; None if it has none. `rollouts`: workers that play them. What they print is
    in `logs/` of `folder`, the run's, or on stderr if it has none."""
    if not config.engine.process and not rollouts:
        return None
    return Processes(str(folder or ""), logs=None if folder is None else folder / "logs")


def own_threads(config: TrainConfig) -> int:
    """Processors that this process computes with: those that are no worker process's."""
    total = available_threads(config.runtime.threads)
    each = threads_of_engine(config)
    if each is None or each == total:
        return total
    return max(total - each * config.engine.replicas, 1)
