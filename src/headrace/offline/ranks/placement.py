"""Where the ranks of an offline trainer are in a cluster, and what the nodes there have to have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.config.cluster import PlaceConfig, logical_devices
from headrace.config.values.hosts import is_loopback
from headrace.config.values.name_or_function import is_own
from headrace.config.values.paths import path_of
from headrace.controller.building.threads import available_threads
from headrace.controller.building.workers_apart import WorkersApart, in_ray, marked
from headrace.controller.planning.node_needs import functions_of, model_at, run_folder
from headrace.controller.planning.placement import check_used, claims_for
from headrace.offline.ranks.rank import OfflineRank
from headrace.offline.trained.of_config import OfflineConfig
from headrace.runtime.asked_of_nodes import AskedOfNodes
from headrace.runtime.node_check import Needs
from headrace.runtime.placing import Bundle, Team, Teams

_KIND = OfflineRank.kind
_HOST_KEY = "runtime.host"
_LESS = "Lower devices or cpus in cluster.place.trainer, have fewer ranks (trainer.layout), or add nodes"
"""For people."""


def place_of(config: OfflineConfig) -> PlaceConfig | None:
    """What each rank asks a cluster for; None where they are with the command, and ask for nothing."""
    return config.cluster.place.get("trainer")


def in_cluster(config: OfflineConfig, folder: Path, logs: Path) -> WorkersApart:
    """The cluster that the ranks are in. `folder`: the output, of which all of their nodes have to see a file. Raises
    ConfigError."""
    return in_ray(
        str(folder),
        logs,
        config.runtime.address,
        config.runtime.threads,
        asked_of_ranks(config, lambda: marked(folder)),
        logical_devices(config.cluster),
    )


def asked_of_ranks(config: OfflineConfig, marker: Callable[[], Path | None]) -> AskedOfNodes:
    """`marker`: a file of the output folder, of this run alone, if there is a folder. Raises ConfigError."""
    return AskedOfNodes(
        rank_teams(config),
        needs=lambda memory: {_KIND: rank_needs(config, marker())},
        together=(_KIND,) if is_loopback(config.runtime.host) else (),
        host_key=_HOST_KEY,
    )


def ranks_of(config: OfflineConfig) -> list[str]:
    """All ranks as workers are called, placed or not."""
    return [f"{_KIND}/{rank}" for rank in range(config.trainer.layout.ranks)]


def threads_of_rank(config: OfflineConfig, here: int) -> int:
    """Processors that each computes with. `here`: how many share a machine's."""
    place = place_of(config)
    return max(available_threads(config.runtime.threads) // here if place is None else int(place.cpus), 1)


def rank_teams(config: OfflineConfig) -> Teams:
    """Ranks in their order. Raises ConfigError."""
    place, count = place_of(config), config.trainer.layout.ranks
    if place is None:
        return Teams()
    claims = claims_for(_KIND, place, count, "trainer")
    check_used("trainer", claims, "trainer.layout: d{}" if count == 1 else "")
    bundles = tuple(Bundle((claim,)) for claim in claims)
    return Teams((Team(bundles, place.strategy == "spread"),), device=config.cluster.device, mend=_LESS)


def rank_needs(config: OfflineConfig, marker: Path | None) -> Needs:
    """Of each node with ranks. `marker`: a file of the output folder, of this run alone, if there is a folder. Raises
    OSError."""
    functions, modules = functions_of(config)
    files = [*functions, *model_at("model.path", config.model.path)]
    files += [] if marker is None else [run_folder(marker)]
    return Needs(tuple(files), tuple(modules))


def with_whole_paths(config: OfflineConfig) -> OfflineConfig:
    """As ranks are told it, which may be in another folder than the command."""
    changed: dict[str, Any] = {}
    if (model := path_of(config.model.path)).exists():
        changed["model"] = config.model.model_copy(update={"path": str(model.absolute())})
    name, _, function = config.loss.rpartition(":")
    if is_own(config.loss) and (file := path_of(name)).is_file():
        changed["loss"] = f"{file.absolute()}:{function}"
    return config.model_copy(update=changed)
