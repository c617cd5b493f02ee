"""What a node has to have for a run's workers: looked at there, judged by the controller. Plain data both ways."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from headrace import __version__
from headrace.errors import HeadraceError
from headrace.runtime.file_digests import digest, digests
from headrace.runtime.machine import boot_id, loopback_here
from headrace.runtime.module_search import found_modules
from headrace.runtime.process.site import more_room, site_parent, sweep

ABSENT = ""
"""The digest of a file that is not there."""
_NONE = "none"
_PLAYERS = "rollout"
"""Kind of those that play, and keep samples."""
_GIB = 1 << 30
SMALLER_BATCHES = "lower rollout.prompts_per_batch, rollout.samples_per_prompt or engine.max_context"
"""For people, where a batch's samples are too large."""
IN_STORES = "columns lie in the cluster's object store: when that is full, they spill to disks as the cluster is set to"
"""For people, where not all nodes see the memory of the controller's machine."""


class NodeUnfit(HeadraceError, RuntimeError):
    """A node lacks something that the workers on it need."""


@dataclass(frozen=True, slots=True)
class NeededFile:
    path: str
    digest: str
    """See `file_digests`; `ABSENT` for one that is not here, and that nodes are not to have either."""
    what: str
    """For whom, as `reward.function`."""
    mend: str
    sampled: bool = False
    """Too large to be read: samples of it are compared."""

    @classmethod
    def of(cls, path: Path, what: str, mend: str) -> NeededFile:
        """As it is here. Raises OSError."""
        return cls(str(path), digest(path), what, mend)


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
class Taken:
    """Bytes of the memory that a machine's processes share."""

    versions: int = 0
    """By new weights."""
    columns: int = 0
    """By a batch's samples."""

    def __add__(self, other: Taken) -> Taken:
        return Taken(self.versions + other.versions, self.columns + other.columns)

    @property
    def size(self) -> int:
        return self.versions + self.columns

    def mends(self) -> list[str]:
        """How to take less of what is taken, for people."""
        of_versions = ["use weights.transport: disk"] if self.versions else []
        return of_versions + ([SMALLER_BATCHES, "set rollout.workers to 0"] if self.columns else [])

    def told(self) -> str:
        """What takes it, on nodes, for people."""
        parts = []
        if self.versions:
            parts.append("new weights, two versions of them where the trainer is and two for each relay")
        if self.columns:
            parts.append("the samples of a batch, where the command is")
        return f"{', and '.join(parts)},"


@dataclass(frozen=True, slots=True)
class SharedNeeds:
    """What a run needs of the memory that a machine's processes share."""

    versions: int
    """Bytes that new weights take where the first rank of the trainer is, and as many for each relay."""
    takers: tuple[str, ...] = ()
    """Kinds of those that take them there, or from a relay beside them."""
    each: bool = False
    """All take them from relays, not those alone who do not share the trainer's memory."""
    unplaced: tuple[str, ...] = ()
    """Workers that are on the controller's node."""
    columns: int = 0
    """Bytes of a batch's samples, at most, which those that play keep: in the object stores of their nodes, unless all
    workers see the memory of the controller's machine."""
    in_files: bool = True
    """Whether they lie in that memory if all see it: small ones are in that of each process alone."""

    def on_nodes(
        self, workers: Mapping[str, Sequence[str]], memory: Mapping[str, str], own: str, *, near: bool = False
    ) -> dict[str, Taken]:
        """What is taken on each node. `workers`, `memory`: by node; `own`: the controller's. `near`: whether all
        workers see its machine's memory."""
        needed = {own: Taken(columns=self.columns)} if near and self.columns and self.in_files else {}
        there = self._there(workers, own)
        home = next((node for worker, node in there if worker == "trainer/0"), None)
        if home is None or not self.versions:
            return needed
        versions = Taken(self.versions)
        needed[home] = needed.get(home, Taken()) + versions
        for worker, node in there:
            apart = self.each or memory[node] != memory[home]
            if apart and worker.partition("/")[0] in self.takers:
                needed[node] = needed.get(node, Taken()) + versions
        return needed

    def in_stores(self, workers: Mapping[str, Sequence[str]], own: str) -> dict[str, int]:
        """Bytes in the object store of each node where some workers play: each plays as much as any other."""
        players = [node for worker, node in self._there(workers, own) if worker.partition("/")[0] == _PLAYERS]
        counts = Counter(players) if self.columns else Counter[str]()
        return {node: -(-self.columns * count // len(players)) for node, count in counts.items()}

    def _there(self, workers: Mapping[str, Sequence[str]], own: str) -> list[tuple[str, str]]:
        """Workers, each with its node."""
        there = [(worker, node) for node, names in workers.items() for worker in names]
        return there + [(worker, own) for worker in self.unplaced]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is looked for on one node."""

    paths: Sequence[str] = ()
    """Of files."""
    sampled: Sequence[str] = ()
    """Of large ones: see `sampled_digest`."""
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
class NodeReport:
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
    memory: str = ""
    """Which memory its processes share, where the system tells."""
    place: str = ""
    """Where that is, as a folder."""
    free: int = 0
    """Bytes, there."""
    used: int = 0

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> NodeReport:
        told = json.loads(text)
        return cls(**{field.name: told[field.name] for field in fields(cls)})


def look(asked: Asked) -> NodeReport:
    """Of the machine where this is called. What runs of this user left in its memory that are no more is removed
    first. Blocking."""
    found = digests(asked.paths, asked.sampled)
    sweep()
    place = site_parent()
    room, number = shutil.disk_usage(place), os.stat(place).st_dev
    return NodeReport(
        platform.node(),
        loopback_here(),
        versions(),
        found,
        found_modules(asked.modules, asked.search),
        memory=f"{boot_id()} {number}",
        place=str(place),
        free=room.free,
        used=room.used,
    )


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


def require(node: str, seen: NodeReport, needs: Needs, workers: Sequence[str]) -> None:
    """`node`: for people. `workers`: those that are to be there. Raises NodeUnfit, with the mend."""
    require_same(f"{node} on {seen.host}", seen.versions, versions())
    for each in needs.files:
        if (found := seen.digests.get(each.path, ABSENT)) == each.digest:
            continue
        if each.digest == ABSENT:
            raise NodeUnfit(
                f"the node {node} on {seen.host} has {each.path} ({each.what}), which is not where the command is, and "
                f"{', '.join(workers)} there would read it; {each.mend}"
            )
        how = "has no" if found == ABSENT else "has another"
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


def require_shared(names: Mapping[str, str], seen: Mapping[str, NodeReport], needed: Mapping[str, Taken]) -> None:
    """`needed`: by node; that of nodes that share their memory adds up. `names`: for people. Raises NodeUnfit, with how
    to have more, or to take less."""
    sums: dict[str, Taken] = {}
    for node, taken in needed.items():
        sums[seen[node].memory] = sums.get(seen[node].memory, Taken()) + taken
    for node in needed:
        each = seen[node]
        if (taken := sums[each.memory]).size > each.free:
            raise NodeUnfit(
                f"{taken.told()} take {taken.size / _GIB:,.2f} GiB of {each.place} on the node {names[node]} on "
                f"{each.host}, where {each.free / _GIB:,.2f} GiB are free; "
                f"{', or '.join([more_room(each.place, taken.size, each.used), *taken.mends()])}"
            )


def require_stores(
    names: Mapping[str, str], hosts: Mapping[str, str], stores: Mapping[str, int], needed: Mapping[str, int]
) -> None:
    """`needed`: bytes by node, and `stores`: those that its object store has. `names`, `hosts`: for people. Raises
    NodeUnfit, with how to have more."""
    for node, size in needed.items():
        if size > (has := stores.get(node, 0)):
            raise NodeUnfit(
                f"samples of a batch take up to {size / _GIB:,.2f} GiB of the object store of the node {names[node]} "
                f"on {hosts[node]}, which has {has / _GIB:,.2f} GiB; start Ray there with more (ray start "
                f"--object-store-memory={2 * size}; it lies in /dev/shm, of which a container has its --shm-size), "
                f"place workers of rollout on more nodes, or {SMALLER_BATCHES}"
            )


def require_together(machines: Mapping[str, str], key: str) -> None:
    """`machines`: the loopback of its machine, by worker of one model. `key`: of the config, that says where they meet
    otherwise. Raises NodeUnfit for several machines."""
    if len(dict.fromkeys(machines.values())) > 1:
        raise NodeUnfit(
            f"{', '.join(machines)} are on several machines, and ranks of one model meet on loopback unless "
            f"{key} says where; set it to an address of the machine of the first of them that the others reach, on a "
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
