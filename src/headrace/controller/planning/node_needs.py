"""What a run asks of the nodes of a cluster: above all what they have to see, by the kind of worker that is on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from headrace.config import TrainConfig
from headrace.config.base import Section
from headrace.config.cluster import ROLES
from headrace.config.places import layouts_of
from headrace.config.values.hosts import is_loopback
from headrace.config.values.name_or_function import is_own
from headrace.config.values.paths import path_of
from headrace.controller.planning.function_files import files_of, modules_of
from headrace.controller.planning.given_inputs import texts_of
from headrace.controller.planning.placement import run_teams
from headrace.runtime.asked_of_nodes import AskedOfNodes
from headrace.runtime.node_check import NeededFile, NeededModule, Needs, SharedNeeds

_CALL = ("rollout", "functions", "trainer", "critic")
"""Whose workers call functions of the user's."""
_IN_MEMORY = ("trainer", "engine", "lent", "proximal")
"""Those who share new weights: who makes them first."""
_SHARED_MEMORY = ("shm", "cuda_ipc", "gloo")
"""Transports for which all of them have to see one machine's memory; unless one is given, relays reach who does not."""
_IN_FOLDER = ("trainer", "critic", "rollout")
"""Those who write into the run's folder: checkpoints, and journals of groups."""
_TRAINED = ("trainer", "critic")
"""Kinds whose ranks tell each other gradients, also where each has all of the model."""
_MODEL = "config.json"

_IMPORTABLE = (
    "install it there, or put it on a file system that all nodes share, in the folder of the command or in one of "
    "PYTHONPATH, or name its file: path.py:name"
)
_SHARED = "put it on a file system that all nodes share, or copy it to the same path there"


def asked_of_nodes(
    config: TrainConfig, rollouts: int, shared: SharedNeeds | None, marker: Callable[[], Path | None]
) -> AskedOfNodes:
    """By a run. `rollouts`: workers that play. `shared`: see `Plan.shared`. `marker`: a file of the run's folder, of
    this run alone, if there is a folder. Raises ConfigError."""
    return AskedOfNodes(
        run_teams(config, rollouts),
        needs=lambda memory: needs_by_kind(config, marker(), memory),
        together=together_of(config),
        meet=meeting_of(config),
        shared=shared,
        room_s=config.cluster.room_deadline_s,
    )


def needs_by_kind(config: TrainConfig, folder: Path | None, memory: Path | None) -> Mapping[str, Needs]:
    """Of nodes with workers of each kind. `folder`: a file of the run's folder, and `memory` one in this machine's
    memory, each of this run alone: who sees it sees what is beside it. Without one of the two nothing is asked of
    it."""
    functions, modules = functions_of(config)
    models = [*models_of(_named_models(config))]
    made: dict[str, Needs] = {}
    for role in ROLES:
        files = [*(functions if role in _CALL else []), *models]
        by_disk = config.transport == "disk" and role in _IN_MEMORY
        if folder is not None and (role in _IN_FOLDER or by_disk):
            files.append(run_folder(folder))
        if memory is not None and role in _IN_MEMORY and config.weights.transport in _SHARED_MEMORY:
            files.append(
                NeededFile.of(
                    memory,
                    f"weights.transport {config.weights.transport}: the memory of the machine where the command is",
                    "it is another machine, which weights in shared memory do not reach: place trainer and engine on "
                    "this machine's nodes by cluster.place, leave weights.transport out, by which they go over relays, "
                    "or use weights.transport: disk with the run's folder on a file system that all nodes share",
                )
            )
        made[role] = Needs(tuple(files), tuple(modules if role in _CALL else ()))
    return made


def meeting_of(config: TrainConfig) -> tuple[str, ...]:
    """Kinds of workers that have to be on the trainer's machine, which is first: new weights do not leave it."""
    by_relays = config.transport == "shm" and is_loopback(config.weights.host)
    return _IN_MEMORY if by_relays else ()


def together_of(config: TrainConfig) -> tuple[str, ...]:
    """Kinds whose workers have to be on one machine, where they find each other on loopback: ranks of one model, but
    for those that only score and have all of it each. With `weights.host`, none."""
    if not is_loopback(config.weights.host):
        return ()
    return tuple(kind for kind, layout in layouts_of(config).items() if kind in _TRAINED or layout.stage)


def run_folder(file: Path) -> NeededFile:
    """`file`: of the run's folder, and of this run alone. Raises OSError."""
    return NeededFile.of(file, "the run's folder", "give --dir on a file system that all nodes share")


def functions_of(config: Section) -> tuple[list[NeededFile], list[NeededModule]]:
    """What those of the user's are imported from."""
    told: dict[str, str] = {}
    for key, text in texts_of(config.model_dump(mode="json", by_alias=True)):
        if is_own(text):
            told.setdefault(text.rpartition(":")[0], key)
    files: list[NeededFile] = []
    modules: list[NeededModule] = []
    for name, key in told.items():
        if (path := path_of(name)).is_file():
            for number, file in enumerate(files_of(path.absolute())):
                files.append(NeededFile.of(file, f"{key} imports it" if number else key, _SHARED))
        elif all(part.isidentifier() for part in name.split(".")):
            for number, module in enumerate(modules_of(name)):
                modules.append(NeededModule(module, f"{key}, {name}, imports it" if number else key, _IMPORTABLE))
    return files, modules


def models_of(named: Mapping[str, str | None]) -> Iterator[NeededFile]:
    """Of each folder of a model that is here. `named`: by the config's key. Raises OSError."""
    for key, name in named.items():
        if name is not None and (path := path_of(name) / _MODEL).is_file():
            yield NeededFile.of(path.absolute(), key, _SHARED)


def _named_models(config: TrainConfig) -> Mapping[str, str | None]:
    return {
        "model.path": config.model.path,
        "reference.model": config.reference.model,
        "teacher.model": config.teacher.model,
        "critic.model": config.critic.model,
        "reward.model.path": config.reward.model.path,
    }
