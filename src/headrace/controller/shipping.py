"""What a job that runs elsewhere takes with it: its config, and the files of the user's functions."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml

from headrace.config import ConfigError, TrainConfig
from headrace.config.values.name_or_function import is_own
from headrace.config.values.paths import path_of
from headrace.store.origin import split_version

CONFIG = "config.yaml"
_FUNCTIONS = "functions"
_PATHS = ("train", "eval", "rollouts", "path", "model", "run", "file")
"""Keys of files and folders, which stay where they are: they are named in full, since a job has a folder of its own."""
_MOST = 64 * 2**20
"""Bytes of functions' files."""


def ship(config: TrainConfig, folder: Path) -> Path:
    """The config's file in `folder`, which is empty, with functions beside it: each with the Python files of its own
    folder, which it may import. Raises ConfigError, OSError."""
    taken: dict[Path, str] = {}
    size = 0
    given = _named(config.model_dump(mode="json", by_alias=True, exclude_unset=True), "", taken)
    for source, name in taken.items():
        into = folder / name
        into.mkdir(parents=True)
        for file in sorted(source.glob("*.py")):
            size += file.stat().st_size
            if size > _MOST:
                raise ConfigError(
                    f"the Python files beside your functions are more than {_MOST >> 20} MiB, up to {file}; keep "
                    "functions in a folder of their own"
                )
            shutil.copyfile(file, into / file.name)
    made = folder / CONFIG
    made.write_text(yaml.safe_dump(given, sort_keys=False))
    return made


def _named(value: Any, key: str, taken: dict[Path, str]) -> Any:
    """`value`, as it is named in the job. `taken`: the folders of functions, by what they are called there."""
    match value:
        case dict():
            return {name: _named(inner, name, taken) for name, inner in value.items()}
        case list():
            return [_named(inner, key, taken) for inner in value]
        case str() if is_own(value):
            path, _, name = value.rpartition(":")
            file = path_of(path)
            if file.suffix == ".py" and file.is_file():
                called = taken.setdefault(file.absolute().parent, f"{_FUNCTIONS}/{len(taken)}")
                return f"{called}/{file.name}:{name}"
        case str() if key in _PATHS and _path_in(value, key).exists():
            return str(path_of(value).absolute())
    return value


def _path_in(value: str, key: str) -> Path:
    """The folder that has to be there: `run` may name a version of it, as RUN@N."""
    return path_of(split_version(value)[0] if key == "run" else value)
