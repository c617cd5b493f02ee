"""What a worker process is told by the command line: its parent alone writes that."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

PACKAGE = "headrace"


@dataclass(frozen=True, slots=True)
class Boot:
    kind: str
    """Where the worker's class is: module:Class."""
    packages: list[str]
    """Under which it has to be."""
    name: str
    rank: int
    generation: int
    """How many of the name were before."""
    threads: int | None
    limits: dict[str, float]
    """See `Placement.limits`."""
    folder: str
    """Of the site."""
    listening: int
    """Descriptor of the socket that it is spoken to by."""
    life: int
    """Descriptor of a pipe that ends with the parent."""
    parent: int
    paths: list[str]
    """Where the parent looks for modules."""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Boot:
        told = json.loads(text)
        return cls(**{field.name: told[field.name] for field in fields(cls)})


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
