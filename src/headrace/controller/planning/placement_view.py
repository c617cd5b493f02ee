"""Which worker would be on which node and device of a cluster, looked at and drawn."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from headrace.config import ConfigError, TrainConfig
from headrace.config.cluster import ClusterConfig, RanksClusterConfig
from headrace.config.runtime import RuntimeConfig
from headrace.config.sft import SFTRuntimeConfig
from headrace.controller.building.ray_folder import ray_parent
from headrace.controller.building.threads import available_threads
from headrace.controller.planning.node_needs import asked_of_nodes
from headrace.controller.planning.placement import worker_counts
from headrace.runtime.asked_of_nodes import AskedOfNodes
from headrace.runtime.node_check import IN_STORES, SharedNeeds
from headrace.runtime.placing import Node, NoRoom, Placed, placed
from headrace.runtime.process.site import Site

_HERE = "here"


def drawn(config: TrainConfig, rollouts: int, shared: SharedNeeds | None = None) -> list[str]:
    """Lines. `rollouts`: workers that play. `shared`: see `Plan.shared`. A cluster that is to be joined is joined for a
    moment, and its nodes are looked at. Raises ConfigError where a run's own has no room, or no place for its folder;
    ClusterError for one that is joined, and ClusterRefusal where that has none."""
    asked = asked_of_nodes(config, rollouts, shared, lambda: None)
    counts = worker_counts(config, rollouts)
    workers = [f"{role}/{number}" for role, count in counts.items() for number in range(count)]
    return drawn_of(asked, config.runtime, config.cluster, workers)


def drawn_of(
    asked: AskedOfNodes,
    runtime: RuntimeConfig | SFTRuntimeConfig,
    cluster: ClusterConfig | RanksClusterConfig,
    workers: Sequence[str],
) -> list[str]:
    """As `drawn`, of whatever is `asked`. `workers`: all that there are, placed or not."""
    teams = asked.teams
    if runtime.address is None:
        ray_parent()
        nodes: Sequence[Node] = [_own(runtime, cluster)]
        try:
            found: Sequence[Placed] = placed(teams.teams, nodes, teams.device, mend=teams.mend)
        except NoRoom as none:
            raise ConfigError(str(none)) from none
        is_near = True
    else:
        nodes, found, is_near = _looked_at(runtime.address, asked)
    lines = _lines(nodes, found, teams.device, workers)
    return lines if is_near else [*lines, f"  {IN_STORES}"]


def _own(runtime: RuntimeConfig | SFTRuntimeConfig, cluster: ClusterConfig | RanksClusterConfig) -> Node:
    """The node of a Ray that is started for the run."""
    devices = cluster.local_devices
    if cluster.device == "GPU":
        import torch

        devices = torch.cuda.device_count()
    return Node(_HERE, "this machine", float(available_threads(runtime.threads)), (1.0,) * devices, here=True)


def _looked_at(address: str, asked: AskedOfNodes) -> tuple[Sequence[Node], Sequence[Placed], bool]:
    """And whether all of the nodes see the memory of this machine."""
    from headrace.runtime.ray.environment import prepare

    prepare(address)
    try:
        from headrace.runtime.ray.joining import looked_at
        from headrace.runtime.ray.scouts import Inspection
    except ImportError as error:
        raise ConfigError(f"runtime.kind is ray: pip install 'headrace[cluster]' ({error})") from error
    site = Site("check")
    try:
        marker = site.folder / "marker"
        marker.write_text(secrets.token_hex(16))
        inspection = Inspection(asked, marker)
        return *looked_at(address, asked.teams, inspection), inspection.all_near
    finally:
        site.close()


def _lines(nodes: Sequence[Node], found: Sequence[Placed], device: str, workers: Sequence[str]) -> list[str]:
    asked = {worker for each in found for worker in each.bundle.workers}
    rest = [worker for worker in workers if worker not in asked]
    lines = []
    for node in nodes:
        has = f"{node.cpus:g} CPU" + (f", {sum(node.devices):g} {device}" if node.devices else "")
        lines.append(f"  node {node.name}{', with the controller' if node.here else ''}: {has} free")
        there = [each for each in found if each.node == node.id]
        for number in range(len(node.devices)):
            on = [
                f"{' + '.join(each.bundle.workers)} ({_part(each.bundle.devices)})"
                for each in there
                if number in each.devices
            ]
            lines.append(f"    {f'{device} {number}':<14} {', '.join(on) or 'nobody'}")
        if none := [worker for each in there if not each.devices for worker in each.bundle.workers]:
            lines.append(f"    {'CPU':<14} {', '.join(none)}")
        if node.here and rest:
            lines.append(f"    {'not counted':<14} {', '.join(rest)}")
    return lines


def _part(devices: float) -> str:
    return f"{devices:g} of it" if devices < 1 else "all of it"
