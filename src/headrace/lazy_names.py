"""What a package offers by name, imported when it is first used."""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # as type checkers know it: `typing` is a third of the start of a process that scores
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The package's `__getattr__`. `modules`: where each name is defined."""

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return find
