"""Whether memory that processes share has room for the weights that go through it."""

from __future__ import annotations

import shutil

from headrace.config import ConfigError, TrainConfig
from headrace.controller.planning.memory_estimate import GIB, MemoryEstimate
from headrace.controller.planning.placement import teams_of, worker_counts
from headrace.runtime.node_check import SharedVersions
from headrace.runtime.process.site import site_parent, sweep
from headrace.weights.transport import Transport


def shared_versions(
    config: TrainConfig, transport: Transport, memory: MemoryEstimate, rollouts: int
) -> SharedVersions | None:
    """What is looked at node by node, where a cluster is joined in which workers have places. `rollouts`: workers that
    play."""
    cluster = config.cluster
    if config.runtime.kind != "ray" or config.runtime.address is None or not (cluster.place or cluster.colocate):
        return None
    if transport != "shm" or not memory.published:
        return None
    placed = {worker for team in teams_of(config, rollouts).teams for each in team.bundles for worker in each.workers}
    all_of = [f"{role}/{number}" for role, count in worker_counts(config, rollouts).items() for number in range(count)]
    unplaced = [worker for worker in all_of if worker not in placed]
    if "trainer" not in config.trainer_processes:
        unplaced.append("trainer/0")
    return SharedVersions(
        memory.published, ("engine", "lent", "proximal"), config.weights.transport == "collective", tuple(unplaced)
    )


def check_shared_memory(transport: Transport, memory: MemoryEstimate) -> None:
    """Of this machine. Raises ConfigError, with how much is needed and how to have more. What runs left that are no
    more is removed first."""
    needed = memory.published + memory.at_relays
    if transport != "shm" or not needed:
        return
    sweep()
    place = site_parent()
    free = shutil.disk_usage(place).free
    if needed > free:
        size = (needed + shutil.disk_usage(place).used) // GIB + 1
        raise ConfigError(
            f"weights.transport is {'collective' if memory.at_relays else 'shm'}, which keeps two versions of the "
            f"weights in {place}{', and two for each relay' if memory.at_relays else ''}: {needed / GIB:,.2f} GiB, and "
            f"{free / GIB:,.2f} GiB are free there; have {size} GiB (mount -o remount,size={size}G {place}, or a "
            f"container's --shm-size={size}g), or use weights.transport: disk"
        )
