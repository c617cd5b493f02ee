"""RUN/inputs/: what a run was given in Python, written down, so that its config repeats it.

A file's name ends in a digest of what is in it, so that a config that names it says what it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from headrace.config.errors import ConfigError
from headrace.store.errors import write_failed
from headrace.store.media.files import sha256_of, sync_path

FOLDER_NAME = "inputs"
_DIGITS = 16
_NAMED = re.compile(rf"-([0-9a-f]{{{_DIGITS}}})\.[a-z]+$")


def write_input(run: Path, name: str, ending: str, parts: Iterable[bytes]) -> Path:
    """`RUN/inputs/NAME-DIGEST.ENDING`, whole. One that is there already stays. Raises what `parts` raises, DiskFull and
    other StoreErrors."""
    folder = run / FOLDER_NAME
    beside = folder / f".{name}.new"
    digest = sha256()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with beside.open("wb") as file:
                _write(file, parts, digest.update)
            sync_path(beside)
            path = folder / f"{name}-{digest.hexdigest()[:_DIGITS]}.{ending}"
            beside.replace(path)
            sync_path(folder)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise write_failed(error, folder / name) from error
    return path


def _write(file: BinaryIO, parts: Iterable[bytes], update: Callable[[bytes], None]) -> None:
    for part in parts:
        file.write(part)
        update(part)


def check_input(key: str, path: Path) -> None:
    """Raises ConfigError if `path`, which the config's `key` names, is an input of a run and has been changed."""
    named = _NAMED.search(path.name)
    if path.parent.name != FOLDER_NAME or named is None or not path.is_file():
        return
    if not sha256_of(path).startswith(named[1]):
        raise ConfigError(
            f"{key} is {path}, which was changed since it was written: its digest is no longer {named[1]}; put it "
            "back, or copy it elsewhere and name the copy"
        )
