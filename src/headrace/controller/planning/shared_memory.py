"""Whether memory that processes share has room for what lies there: new weights, and samples of those that play."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.config import ConfigError
from headrace.controller.planning.free_memory import GIB
from headrace.controller.planning.memory_estimate import MemoryEstimate
from headrace.controller.planning.placement import run_teams, worker_counts
from headrace.controller.planning.table_size import largest_group
from headrace.runtime.node_check import SharedNeeds, Taken
from headrace.runtime.process.kept import SHARED
from headrace.runtime.process.site import more_room, site_parent, sweep
from headrace.weights.transport import Transport

if TYPE_CHECKING:
    from headrace.controller.planning.plan import Plan

_SPARE = 1 / 16
"""Of what is free where samples lie: for messages on their way, and what was freed and is still read."""


def with_shared_memory(plan: Plan) -> Plan:
    """With what is to be looked at on nodes of a cluster, or else with what there is here. Raises ConfigError where
    that is too little."""
    if (shared := _on_nodes(plan)) is not None:
        return replace(plan, shared=shared)
    columns = batch_columns(plan) if _in_files(plan) else 0
    room = check_shared_memory(plan.transport, plan.memory, columns)
    return replace(plan, column_room=room) if columns else plan


def batch_columns(plan: Plan) -> int:
    """Bytes of a batch's samples, if all are as long as the context, where workers that play keep them; 0 where none
    do. Kept sets are not counted: as large as they may be they hardly ever are."""
    groups = plan.config.rollout.prompts_per_batch if plan.rollout_workers else 0
    return groups * largest_group(plan, kept_sets=False)


def _in_files(plan: Plan) -> bool:
    """Whether workers that play, and share this machine's memory, keep samples there: those of some size."""
    return largest_group(plan) >= SHARED * plan.config.rollout.samples_per_prompt


def check_shared_memory(transport: Transport, memory: MemoryEstimate, columns: int = 0) -> int:
    """Of this machine: bytes that are left for samples. `columns`: of a batch, those that lie there. Raises
    ConfigError, with how much is needed and how to have more. What runs left that are no more is removed first."""
    weights = memory.published + memory.at_relays if transport == "shm" else 0
    place = site_parent()
    if not weights and not columns:
        return 0
    sweep()
    found = shutil.disk_usage(place)
    spare = int(_SPARE * found.free) if columns else 0
    if weights + columns + spare <= found.free:
        return found.free - spare - weights
    uses = []
    if weights:
        uses.append(
            f"weights.transport is {'collective' if memory.at_relays else 'shm'}, which keeps two versions of the "
            f"weights in {place}{', and two for each relay' if memory.at_relays else ''}: {weights / GIB:,.2f} GiB"
        )
    if columns:
        uses.append(
            f"samples of a batch, which workers that play keep in {place}, take up to {columns / GIB:,.2f} GiB, if all "
            "are as long as the context"
        )
    needed = weights + int(columns / (1 - _SPARE))
    raise ConfigError(
        f"{'; '.join(uses)}, and {found.free / GIB:,.2f} GiB are free there; "
        f"{', or '.join([more_room(place, needed, found.used), *Taken(weights, columns).mends()])}"
    )


def _on_nodes(plan: Plan) -> SharedNeeds | None:
    """What is looked at node by node, where a cluster is joined in which workers have places."""
    config, cluster, memory = plan.config, plan.config.cluster, plan.memory
    if config.runtime.kind != "ray" or config.runtime.address is None or not (cluster.place or cluster.colocate):
        return None
    columns = batch_columns(plan)
    versions = memory.published if plan.transport == "shm" else 0
    if not versions and not columns:
        return None
    teams, counts = run_teams(config, plan.rollout_workers).teams, worker_counts(config, plan.rollout_workers)
    placed = {worker for team in teams for each in team.bundles for worker in each.workers}
    all_of = [f"{role}/{number}" for role, count in counts.items() for number in range(count)]
    unplaced = [worker for worker in all_of if worker not in placed]
    if "trainer" not in config.trainer_processes:
        unplaced.append("trainer/0")
    each = config.weights.transport == "collective"
    return SharedNeeds(versions, ("engine", "lent", "proximal"), each, tuple(unplaced), columns, _in_files(plan))
