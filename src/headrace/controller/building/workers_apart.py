"""Workers of a run that are not in the controller's process: whether it has any, and where."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from headrace.config import ConfigError, TrainConfig
from headrace.config.cluster import logical_devices
from headrace.controller.building.processors import process_count
from headrace.controller.building.ray_head import RayHead
from headrace.controller.building.threads import available_threads
from headrace.controller.planning.node_needs import asked_of_nodes
from headrace.runtime.apart import Apart
from headrace.runtime.asked_of_nodes import AskedOfNodes
from headrace.runtime.node_check import SharedNeeds
from headrace.runtime.process.processes import Processes
from headrace.store.origin import taken_origin


class WorkersApart(Apart, Protocol):
    """Of a run."""

    def make_folder(self, name: str) -> Path:
        """One in memory that all workers of this machine see, and that goes with the run."""


def workers_apart(
    config: TrainConfig, folder: Path | None, rollouts: int = 0, shared: SharedNeeds | None = None
) -> WorkersApart | None:
    """Where a run has its workers that are apart; None if it has none. `rollouts`: workers that play.
    `shared`: see `Plan.shared`. What they print is in `logs/` of `folder`, the run's, or on stderr if it has none.
    Raises ConfigError where Ray is wanted and cannot be had."""
    if not (process_count(config) or rollouts or config.functions_process):
        return None
    logs = None if folder is None else folder / "logs"
    if config.runtime.kind == "ray":
        return _cluster(config, folder, logs, rollouts, shared)
    return Processes(str(folder or ""), logs=logs)


def in_ray(
    run: str,
    logs: Path | None,
    address: str | None,
    threads: int | None,
    asked: AskedOfNodes,
    devices: Mapping[str, int] = MappingProxyType({}),
) -> WorkersApart:
    """The cluster at `address`; without one, one that is started here, with so many `threads` and logical `devices`.
    `run`, `asked`: see `RayCluster`. Raises ConfigError where Ray is not installed, or has no place for
    its folder."""
    from headrace.runtime.ray.environment import prepare

    prepare(address)
    try:
        from headrace.runtime.ray.cluster import RayCluster
    except ImportError as error:
        raise ConfigError(f"runtime.kind is ray: pip install 'headrace[cluster]' ({error})") from error
    head = RayHead(available_threads(threads), _log(logs), devices) if address is None else None
    return RayCluster(run, address=address, head=head, logs=logs, asked=asked)


def _cluster(
    config: TrainConfig, folder: Path | None, logs: Path | None, rollouts: int, shared: SharedNeeds | None
) -> WorkersApart:
    return in_ray(
        str(folder or ""),
        logs,
        config.runtime.address,
        config.runtime.threads,
        asked_of_nodes(
            config,
            rollouts,
            shared,
            lambda: None if folder is None else marked(folder),
            lambda: None if folder is None or (name := config.from_.run) is None else taken_origin(folder, name),
        ),
        logical_devices(config.cluster),
    )


def marked(folder: Path) -> Path:
    """A file of the run's folder that no other has."""
    marker = folder / "logs" / "cluster"
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.write_text(secrets.token_hex(16))
    return marker.absolute()


def _log(logs: Path | None) -> Path | None:
    return None if logs is None else logs / "ray.log"
