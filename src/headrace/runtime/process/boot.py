"""What a worker process is told by the command line: its parent alone writes that."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Self

PACKAGE = "headrace"
_TEAMS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBoot:
    """What every process is told of the worker that it is to have, as JSON."""

    kind: str
    """Where the worker's class is: module:Class."""
    packages: list[str]
    """Under which it has to be."""
    name: str
    rank: int
    generation: int
    """How many of the name were before."""
    threads: int | None
    """See `Placement.threads`."""
    limits: dict[str, float]
    """See `Placement.limits`."""
    folder: str
    """Of the site."""
    paths: list[str]
    """Where whoever begins it looks for modules."""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Self:
        told = json.loads(text)
        return cls(**{field.name: told[field.name] for field in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot(WorkerBoot):
    """Of a child."""

    listening: int
    """Descriptor of the socket that it is spoken to by."""
    life: int
    """Descriptor of a pipe that ends with the parent."""
    parent: int


def thread_variables(threads: int | None) -> dict[str, str]:
    """Of the environment: how many a library may begin; none where nothing limits them."""
    return {} if threads is None else dict.fromkeys(_TEAMS, str(threads))


def path_of(kind: type, packages: Sequence[str]) -> str:
    """By which a process finds the class. Raises ValueError if it would not, or may not."""
    path = f"{kind.__module__}:{kind.__qualname__}"
    if class_at(path, packages) is not kind:
        raise ValueError(f"{path} is another class than the one that is to be started; a process could not find it")
    return path


def class_at(path: str, packages: Sequence[str]) -> type:
    """Raises ValueError for what is not under `packages`, or is no class at the top of a module."""
    module, _, name = path.partition(":")
    if not any(module == package or module.startswith(f"{package}.") for package in packages):
        raise ValueError(f"{path} is not under {', '.join(packages)}: a worker process runs no other class")
    if not name.isidentifier():
        raise ValueError(f"{path} is no class at the top of its module; a process could not find it")
    found = getattr(importlib.import_module(module), name, None)
    if not isinstance(found, type):
        raise ValueError(f"there is no class {path}")
    return found
