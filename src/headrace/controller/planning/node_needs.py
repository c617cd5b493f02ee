"""What a run asks of the nodes of a cluster: above all what they have to see, by the kind of worker that is on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from headrace.config import TrainConfig
from headrace.config.base import Section
from headrace.config.cluster import ROLES, Role
from headrace.config.places import layouts_of
from headrace.config.values.hosts import is_loopback
from headrace.config.values.name_or_function import is_own
from headrace.config.values.paths import path_of
from headrace.controller.planning.function_files import files_of, modules_of
from headrace.controller.planning.given_inputs import texts_of
from headrace.controller.planning.judges import own_judges
from headrace.controller.planning.model_files import CONFIG, model_files
from headrace.controller.planning.placement import run_teams
from headrace.runtime.asked_of_nodes import AskedOfNodes
from headrace.runtime.file_digests import digests
from headrace.runtime.node_check import ABSENT, NeededFile, NeededModule, Needs, SharedNeeds
from headrace.store.origin import Origin

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

_IMPORTABLE = (
    "install it there, or put it on a file system that all nodes share, in the folder of the command or in one of "
    "PYTHONPATH, or name its file: path.py:name"
)
_SHARED = "put it on a file system that all nodes share, or copy it to the same path there"
_MODEL_SHARED = (
    "put the model on a file system that all nodes share, or copy all files of its folder to the same path there"
)
_MODEL_ALONE = "remove it there, or put the model on a file system that all nodes share"
_ORIGIN = "from.run"
_ORIGIN_SHARED = "give --dir on a file system that all nodes share: the run's copy of what it begins from is in there"


def asked_of_nodes(
    config: TrainConfig,
    rollouts: int,
    shared: SharedNeeds | None,
    marker: Callable[[], Path | None],
    origin: Callable[[], Origin | None] = lambda: None,
) -> AskedOfNodes:
    """By a run. `rollouts`: workers that play. `shared`: see `Plan.shared`. `marker`: a file of the run's folder, of
    this run alone, if there is a folder. `origin`: what the run has taken of another in there, once it has. Raises
    ConfigError."""
    return AskedOfNodes(
        run_teams(config, rollouts),
        needs=lambda memory: needs_by_kind(config, marker(), memory, origin()),
        together=together_of(config),
        meet=meeting_of(config),
        shared=shared,
        room_s=config.cluster.room_deadline_s,
    )


def needs_by_kind(
    config: TrainConfig, folder: Path | None, memory: Path | None, origin: Origin | None = None
) -> Mapping[str, Needs]:
    """Of nodes with workers of each kind. `folder`: a file of the run's folder, and `memory` one in this machine's
    memory, each of this run alone: who sees it sees what is beside it. Without one of the two nothing is asked of
    it. `origin`: see `asked_of_nodes`."""
    functions, modules = functions_of(config)
    looked_at = cache(model_at)
    made: dict[str, Needs] = {}
    for role in ROLES:
        models = [
            file
            for each in _loaded_by(role, config, origin)
            for file in looked_at(each.key, each.path, weights=each.weights)
        ]
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


def model_at(key: str, path: str, *, weights: bool = True) -> tuple[NeededFile, ...]:
    """Of the model that the config's `key` names, if it is a folder here. `weights`: else what its tokenizer is loaded
    from. Raises OSError."""
    folder = path_of(path).absolute()
    if not (folder / CONFIG).is_file():
        return ()
    files = model_files(folder, weights=weights)
    shared, alone = (_ORIGIN_SHARED, _ORIGIN_SHARED) if key == _ORIGIN else (_MODEL_SHARED, _MODEL_ALONE)
    whole, large = [*map(str, files.whole)], [*map(str, files.weights)]
    found = digests(whole, large)
    if unread := [each for each in (*whole, *large) if each not in found]:
        raise OSError(f"{unread[0]} ({key}) cannot be read")
    return (
        *(NeededFile(each, found[each], key, shared) for each in whole),
        *(NeededFile(each, found[each], key, shared, sampled=True) for each in large),
        *(NeededFile(str(each), ABSENT, key, alone, sampled=True) for each in files.absent),
    )


@dataclass(frozen=True, slots=True)
class _Loaded:
    """By workers."""

    key: str
    """Of the config, that names the model."""
    path: str
    weights: bool = True
    """Else its tokenizer alone."""


def _loaded_by(role: Role, config: TrainConfig, origin: Origin | None) -> list[_Loaded]:
    # With `from.run` weights are another run's, in the folder of this one, and the tokenizer is the model's.
    policy = [_Loaded("model.path", config.model.path, weights=config.from_.run is None)]
    tokenizer = [replace(each, weights=False) for each in policy]
    if origin is not None:
        policy.append(_Loaded(_ORIGIN, str(origin.model)))
    judges = [_Loaded("judge.model", judge.path) for judge in own_judges(config.rewards)]
    match role:
        case "engine" if all(section.urls for section in config.engine.sections):  # servers that others have started
            return tokenizer
        case "rollout":
            return [*tokenizer, *(replace(each, weights=False) for each in judges)]
        case "judge":
            return judges
        case "functions":
            return []
        case "critic" if origin is not None and origin.critic is not None:
            return [_Loaded(_ORIGIN, str(origin.critic / "model"))]
    own = {
        "critic": ("critic.model", config.critic.model),
        "reference": ("reference.model", config.reference.model),
        "teacher": ("teacher.model", config.teacher.model),
        "reward": ("reward.model.path", config.reward.model.path),
    }
    key, path = own.get(role, ("", None))
    return policy if path is None else [_Loaded(key, path)]
