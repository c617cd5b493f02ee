"""What workers in processes of their own are given and granted: processors, silence, losses."""

from __future__ import annotations

from headrace.config import TrainConfig
from headrace.config.places import layouts_of
from headrace.controller.building.threads import available_threads
from headrace.controller.planning.judges import own_judges
from headrace.controller.planning.placement import cpus_of
from headrace.runtime.supervision import Often
from headrace.runtime.workers import Silence


def process_count(config: TrainConfig) -> int:
    """Worker processes that compute with models."""
    engines = (config.engine.total + len(own_judges(config.rewards))) * config.engine.apart
    models, layouts = (*config.trainer_processes, *config.scorer_processes), layouts_of(config)
    return engines + sum(layouts[name].ranks for name in models)


def threads_of_worker(config: TrainConfig, kind: str = "") -> int:
    """Processors that each of them computes with; `kind`: of its worker, which may have a place with so many."""
    if (placed := cpus_of(config, kind)) is not None:
        return placed
    total = available_threads(config.runtime.threads)
    if config.async_.in_order or config.runtime.turns:
        return total  # they and the trainer compute in turn
    computes_here = not (config.engine.apart and "trainer" in config.trainer_processes)
    return max(total // (process_count(config) + computes_here), 1)


def own_threads(config: TrainConfig) -> int:
    """Processors that this process computes with: those that are no worker process's."""
    total, each = available_threads(config.runtime.threads), threads_of_worker(config)
    return total if each == total else max(total - each * process_count(config), 1)


def silence_of(config: TrainConfig) -> Silence:
    """In which the event loop of a worker process has to turn: what ends it has to be known before the run is given
    up."""
    own, third = config.runtime.stuck.event_loop_s, config.runtime.stall_timeout_s / 3
    return Silence(own, "runtime.stuck.event_loop_s") if own <= third else Silence(third, "runtime.stall_timeout_s / 3")


def often_of(config: TrainConfig) -> Often:
    """Losses with which a worker that has nothing of the training's state is given up, or the run stops."""
    return Often(config.runtime.restarts.workers, config.runtime.restarts.window_s)
