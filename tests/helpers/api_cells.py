"""Cells of a notebook, and the files that are written of what they define."""

from __future__ import annotations

import importlib.util
import itertools
import linecache
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.api.given.sources import source_of

_CELLS = itertools.count()


def cell(text: str) -> dict[str, Any]:
    """The names that a notebook has after a cell of this text: of `__main__`, in no file."""
    text = textwrap.dedent(text)
    name = f"/tmp/ipykernel_1/{next(_CELLS)}.py"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, name, "exec", dont_inherit=True), names)
    return names


def written(thing: object, tmp_path: Path, name: str = "reward") -> Any:
    """What the file that is written of it defines, loaded on its own."""
    found = source_of(thing, name)
    assert found is not None
    text, defined = found
    file = tmp_path / "written.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location("written", file)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, defined)
