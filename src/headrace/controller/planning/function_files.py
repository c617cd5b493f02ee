"""What a function of the user's needs to be imported: its file or module, and those of the same folder that it imports.

They are read, not run: a module may do anything while it is imported, and so may what it imports late.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

from headrace.runtime.module_search import find_module, search_paths

_INSTALLED = {"site-packages", "dist-packages"}
_INIT = "__init__.py"


def files_of(file: Path) -> list[Path]:
    """The file, and the modules beside it, or below, that it imports, or they do."""
    root = Path(os.path.realpath(file)).parent
    return [file, *_imported([root / file.name], root)]


def modules_of(name: str) -> list[str]:
    """The module `package.module`, and those of the same folder that it imports, unless it is an installed one; none if
    it is not there, or comes with Python."""
    spec = _spec_of(name)
    if spec is None:
        return []
    root = _root_of(name, spec)
    if root is None:
        return [name]
    begin = [*_files(name, root)]
    return list(dict.fromkeys([name, *(_name(each, root) for each in _imported(begin, root))]))


def files_of_module(name: str) -> tuple[Path, list[Path]] | None:
    """The folder that `package.module` is imported from, and the files there that this takes: its own, those of the
    packages that it is in, and of what they import. None for one that is installed, comes with Python, or is not
    there."""
    spec = _spec_of(name)
    root = None if spec is None else _root_of(name, spec)
    if root is None:
        return None
    begin = [*_files(name, root)]
    return root, [*begin, *_imported(begin, root)]


def _spec_of(name: str) -> ModuleSpec | None:
    return None if _top(name) in sys.stdlib_module_names else find_module(name, search_paths())


def _root_of(name: str, spec: ModuleSpec) -> Path | None:
    """The folder that the user's module is imported from; None for any other."""
    file = Path(spec.origin or "")
    if spec.origin is None or file.suffix != ".py" or _INSTALLED & {*file.parts}:
        return None
    return file.parents[name.count(".") + (file.name == _INIT)]


def _imported(begin: Iterable[Path], root: Path) -> list[Path]:
    """What these import, and that does, of what is in `root`; without these."""
    found = dict.fromkeys(begin)
    count, left = len(found), [*found]
    while left:
        file = left.pop()
        for name in _named(file, root):
            if _is_of(name, root):
                new = [each for each in _files(name, root) if each not in found]
                found |= dict.fromkeys(new)
                left += new
    return [*found][count:]


def _files(name: str, root: Path) -> Iterator[Path]:
    """Of the module and the packages that it is in, as far as they are there."""
    folder = root
    for part in name.split("."):
        for file in (folder / part / _INIT, folder / f"{part}.py"):
            if file.is_file():
                yield file
                break
        folder /= part


def _named(file: Path, root: Path) -> Iterator[str]:
    """Modules that its import statements may mean: what comes from one may be a module of it."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # whoever imports it says so
        return
    package = file.relative_to(root).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = [*above, *([node.module] if node.module else [])]
            yield from (".".join([*base, alias.name]) for alias in node.names)


def _is_of(name: str, root: Path) -> bool:
    """Whether Python finds it in that folder: nothing hides it there."""
    top = _top(name)
    if not top or top in sys.stdlib_module_names:
        return False
    spec = find_module(top)
    return spec is None or any(Path(place).is_relative_to(root) for place in _places(spec))


def _places(spec: ModuleSpec) -> list[str]:
    return [*(spec.submodule_search_locations or []), *([spec.origin] if spec.origin else [])]


def _name(file: Path, root: Path) -> str:
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if file.name == _INIT else parts)


def _top(name: str) -> str:
    return name.partition(".")[0]
