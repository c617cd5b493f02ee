"""The files of the user's functions, and where they are in the folder of a job."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from headrace.config import ConfigError
from headrace.controller.planning.function_files import files_of, files_of_module

_FOLDERS = "functions"
_MOST_BYTES, _MOST_FILES = 64 * 2**20, 5_000


class ShippedFunctions:
    """Functions that are named by file have the folder of their file, each such folder by a number, so that no module
    takes the place of one of the same name. Modules of the working folder are in the job's own folder, where they are
    looked for. Below either, paths are as they were."""

    def __init__(self) -> None:
        self._home = Path(os.path.realpath(os.getcwd()))
        self._imported: dict[Path, dict[Path, None]] = {}
        """By the folder of a function's file: what is imported from there."""
        self._modules: dict[Path, None] = {}
        """Of the working folder, which functions are named by, or import."""

    def add_file(self, file: Path) -> str:
        """What the file of a function is called in the job."""
        own, *imported = files_of(Path(os.path.realpath(file)))
        self._imported.setdefault(own.parent, {}).update(dict.fromkeys(imported))
        return f"{_FOLDERS}/{[*self._imported].index(own.parent)}/{own.name}"

    def add_module(self, name: str) -> None:
        """A module that a function is named by keeps its name. It goes along if it is the working folder's."""
        found = files_of_module(name)
        if found is not None and os.path.realpath(found[0]) == str(self._home):
            self._modules.update((self._home / file.relative_to(found[0]), None) for file in found[1])

    def files(self) -> Mapping[str, Path]:
        """By the path in the job: Python files beside functions, which may import them late, and whatever import
        statements name. Raises ConfigError, OSError."""
        self._refuse_mixed()
        size = 0
        made: dict[str, Path] = {}
        for name, file in self._each():
            if name in made:
                continue
            made[name] = file
            size += file.stat().st_size
            if size > _MOST_BYTES or len(made) > _MOST_FILES:
                raise ConfigError(
                    f"the Python files of your functions are more than {_MOST_BYTES >> 20} MiB, or {_MOST_FILES:,}, up "
                    f"to {file}; keep functions, and what they import, in a folder of their own"
                )
        return made

    def _each(self) -> Iterator[tuple[str, Path]]:
        for number, (root, imported) in enumerate(self._imported.items()):
            beside = sorted(file for file in root.glob("*.py") if file.is_file())
            for file in (*beside, *imported):
                yield f"{_FOLDERS}/{number}/{file.relative_to(root)}", file
        if self._modules:  # which hide packages of the same name elsewhere, so that all of these is here
            for file in (*self._modules, *self._imported.get(self._home, {})):
                yield str(file.relative_to(self._home)), file

    def _refuse_mixed(self) -> None:
        """The job's folder is looked in first: what is imported from there hides what has its name elsewhere."""
        here = {_top(file, self._home): file for file in self._modules}
        for root, imported in self._imported.items():
            for file in imported if root != self._home else ():
                if (name := _top(file, root)) in here:
                    raise ConfigError(
                        f"functions of yours import {here[name]} and {file}, both as {name}: in a job all would be "
                        "given the first one; rename one of them"
                    )


def _top(file: Path, root: Path) -> str:
    return file.relative_to(root).parts[0].removesuffix(".py")
