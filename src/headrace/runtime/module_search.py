"""Where modules would be imported from, found without importing any of them."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder


def search_paths() -> list[str]:
    """Where this process looks for modules, with the folder that it is in, where functions are looked for last."""
    return list(dict.fromkeys([*filter(None, sys.path), os.getcwd()]))


def found_modules(names: Iterable[str], paths: Sequence[str]) -> list[str]:
    """Those of the modules, as `package.module`, that this process could import if it looked in `paths` too. Blocking:
    it reads folders."""
    importlib.invalidate_caches()
    return [name for name in names if find_module(name, paths) is not None]


def find_module(name: str, paths: Sequence[str] = ()) -> ModuleSpec | None:
    """None for one that is not there. No package that it is in is imported."""
    top, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # one that is loaded, and was made by hand
        spec = None
    spec = spec or PathFinder.find_spec(top, [*paths])
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{part}", [*spec.submodule_search_locations])
    return spec
