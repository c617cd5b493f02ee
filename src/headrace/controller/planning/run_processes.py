"""What a run's processes take of this machine by themselves, before any has a model."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config import ConfigError, TrainConfig
from headrace.config.places import key_of, layouts_of
from headrace.controller.planning.free_memory import in_gib
from headrace.controller.planning.placement import worker_counts
from headrace.runtime.processors import available_processors

_COMPUTES, _PLAYS = 190 << 20, 56 << 20
"""Bytes of one that has imported torch and transformers, and of one that has not, beside what all share."""
_FEWER = "fewer ranks (layout), engine.replicas or rollout.workers"


@dataclass(frozen=True, slots=True)
class RunProcesses:
    count: int
    size: int
    """Bytes."""


NO_PROCESSES = RunProcesses(0, 0)


def processes_here(config: TrainConfig, rollouts: int) -> RunProcesses:
    """Those that are on this machine as far as one can know: none of a cluster that is joined. `rollouts`: workers that
    play."""
    if config.runtime.address is not None:
        return NO_PROCESSES
    counts = worker_counts(config, rollouts)
    plays = counts["rollout"]
    computes = sum(counts.values()) - plays
    return RunProcesses(computes + plays, computes * _COMPUTES + plays * _PLAYS)


def rank_processes(ranks: int) -> RunProcesses:
    """Those of so many ranks."""
    return RunProcesses(ranks, ranks * _COMPUTES)


def check_room(processes: RunProcesses, free: int, fewer: str = _FEWER) -> None:
    """`free`: bytes of this machine's memory. `fewer`: what makes fewer of them. Raises ConfigError."""
    if processes.size > free:
        raise ConfigError(
            f"this run has {processes.count} processes on this machine, which take {in_gib(processes.size)} of its "
            f"memory before any has a model, and {in_gib(free)} are free; use {fewer}, or join a cluster "
            "(runtime.address)"
        )


def processor_notes(config: TrainConfig) -> list[str]:
    """Of ranks on this machine's processors."""
    if config.runtime.address is not None:
        return []
    here = available_processors()
    return [
        f"{key_of(role)}.layout ({layout.text}) has {layout.ranks} ranks, which compute on {here} processor"
        f"{'s' if here > 1 else ''} in turn"
        for role, layout in layouts_of(config).items()
        if layout.ranks > here
    ]
