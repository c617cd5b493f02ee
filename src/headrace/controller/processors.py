"""The processors of a run whose workers have processes of their own."""

from __future__ import annotations

from headrace.config import TrainConfig
from headrace.controller.threads import available_threads


def worker_count(config: TrainConfig) -> int:
    """Worker processes that compute with models."""
    return config.engine.replicas * config.engine.process + len(config.scorer_processes) + len(config.trainer_processes)


def threads_of_worker(config: TrainConfig) -> int:
    """Processors that each of them computes with."""
    total = available_threads(config.runtime.threads)
    if config.async_.in_order or config.runtime.turns:
        return total  # they and the trainer compute in turn
    computes_here = not (config.engine.process and "trainer" in config.trainer_processes)
    return max(total // (worker_count(config) + computes_here), 1)


def own_threads(config: TrainConfig) -> int:
    """Processors that this process computes with: those that are no worker process's."""
    total, each = available_threads(config.runtime.threads), threads_of_worker(config)
    return total if each == total else max(total - each * worker_count(config), 1)
