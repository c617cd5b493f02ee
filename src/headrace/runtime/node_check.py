"""What a node has to have for a run's workers: looked at there, judged by the controller. Plain data both ways."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from headrace import __version__
from headrace.errors import HeadraceError
from headrace.runtime.module_search import found_modules

_NONE = "none"


class NodeUnfit(HeadraceError, RuntimeError):
    """A node lacks something that the workers on it need."""


@dataclass(frozen=True, slots=True)
class NeededFile:
    path: str
    digest: str
    """SHA-256, as hex."""
    what: str
    """For whom, as `reward.function`."""
    mend: str

    @classmethod
    def of(cls, path: Path, what: str, mend: str) -> NeededFile:
        """As it is here. Raises OSError."""
        return cls(str(path), _digest(path), what, mend)


@dataclass(frozen=True, slots=True)
class NeededModule:
    name: str
    """As it is imported."""
    what: str
    """For whom, as `reward.function`."""
    mend: str


@dataclass(frozen=True, slots=True)
class Needs:
    files: tuple[NeededFile, ...] = ()
    modules: tuple[NeededModule, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """What is looked for on one node."""

    paths: Sequence[str] = ()
    """Of files."""
    modules: Sequence[str] = ()
    """By name."""
    search: Sequence[str] = ()
    """Where workers there look for modules, beside where the node itself does."""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Asked:
        told = json.loads(text)
        return cls(**{field.name: told[field.name] for field in fields(cls)})


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one node."""

    host: str
    loopback: str
    """Which one it has: see `loopback_here`."""
    versions: Mapping[str, str]
    """Of Headrace, Python and torch."""
    digests: Mapping[str, str]
    """Of each file that was asked for, by path; those that are there."""
    modules: Sequence[str] = ()
    """Of those that were asked for, those that can be imported."""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Seen:
        told = json.loads(text)
        return cls(**{field.name: told[field.name] for field in fields(cls)})


def look(asked: Asked) -> Seen:
    """Of the machine where this is called. Blocking."""
    found = {}
    for path in asked.paths:
        try:
            found[path] = _digest(Path(path))
        except OSError:
            continue
    return Seen(platform.node(), loopback_here(), versions(), found, found_modules(asked.modules, asked.search))


def versions() -> Mapping[str, str]:
    """Those that have to be the same on all nodes. Of Python without the last part, of torch without what it was built
    for."""
    try:
        torch = version("torch").partition("+")[0]
    except PackageNotFoundError:
        torch = _NONE
    return {"Headrace": __version__, "Python": platform.python_version().rpartition(".")[0], "torch": torch}


def require_same(host: str, there: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Raises NodeUnfit for a node on which what is told might mean something else."""
    for name, own in here.items():
        if there.get(name) != own:
            raise NodeUnfit(
                f"the node {host} has {name} {there.get(name, _NONE)}, and the controller {own}; install the same there"
            )


def require(node: str, seen: Seen, needs: Needs, workers: Sequence[str]) -> None:
    """`node`: for people. `workers`: those that are to be there. Raises NodeUnfit, with the mend."""
    require_same(f"{node} on {seen.host}", seen.versions, versions())
    for each in needs.files:
        if (found := seen.digests.get(each.path)) == each.digest:
            continue
        how = "has no" if found is None else "has another"
        raise NodeUnfit(
            f"the node {node} on {seen.host} {how} {each.path} ({each.what}), which {', '.join(workers)} there need; "
            f"{each.mend}"
        )
    for module in needs.modules:
        if module.name not in seen.modules:
            raise NodeUnfit(
                f"the node {node} on {seen.host} finds no module {module.name} ({module.what}), which "
                f"{', '.join(workers)} there need; {module.mend}"
            )


def require_together(machines: Mapping[str, str]) -> None:
    """`machines`: the loopback of its machine, by worker of one model. Raises NodeUnfit for several machines."""
    if len(dict.fromkeys(machines.values())) > 1:
        raise NodeUnfit(
            f"{', '.join(machines)} are on several machines, and ranks of one model meet on loopback unless "
            "weights.host says where; set it to an address of the trainer's machine that the others reach, on a "
            "network of these machines alone, or place them on one, by strategy: pack and a node with room for all"
        )


def require_met(machines: Mapping[str, str], home: str) -> None:
    """`machines`: the loopback of its machine, by worker that takes weights, or the trainer's, whose was `home`. Raises
    NodeUnfit for one that is elsewhere."""
    away = [worker for worker, machine in machines.items() if machine != home or not machine]
    if away:
        raise NodeUnfit(
            f"{', '.join(away)} would be on another machine than the trainer, and new weights leave a machine only "
            "where weights.host says so; set it to an address of the trainer's machine that the others reach, on a "
            "network of these machines alone, use weights.transport: disk, or place them on one machine"
        )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def loopback_here() -> str:
    """Whose processes reach each other on loopback: the start of the machine, and its network namespace, since
    containers may have one each. Empty where the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return ""
