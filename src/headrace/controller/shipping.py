"""What a job that runs elsewhere takes with it: its config, and the files of the user's functions."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import yaml

from headrace.config import TrainConfig
from headrace.config.values.name_or_function import is_own
from headrace.config.values.paths import path_of
from headrace.controller.shipped_functions import ShippedFunctions
from headrace.store.origin import split_version

CONFIG = "config.yaml"
_PATHS = ("train", "eval", "data", "rollouts", "path", "model", "run", "file", "read")
"""Keys of files and folders, which stay where they are: they are named in full, since a job has a folder of its own."""
_COMMAND, _TRACKER_FOLDER, _TRACKER_URI = "rollout.agent.command", "track.folder", "track.uri"
_ENGINES = ("engine", "engine.beside")
_INTERPRETERS = tuple(f"{engine}.python" for engine in _ENGINES)
_SERVER_OPTIONS = tuple(f"{engine}.args." for engine in _ENGINES)
_SQLITE, _FILES = "sqlite:///", "file:"


def ship(config: TrainConfig, folder: Path) -> Path:
    """The config's file in `folder`, which is empty, with the files of functions. Raises ConfigError, OSError."""
    functions = ShippedFunctions()
    given = _named(config.model_dump(mode="json", by_alias=True, exclude_unset=True), "", functions)
    for name, file in functions.files().items():
        into = folder / name
        into.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, into)
    made = folder / CONFIG
    made.write_text(yaml.safe_dump(given, sort_keys=False))
    return made


def _named(value: Any, key: str, functions: ShippedFunctions) -> Any:
    """`value`, as it is named in the job. `key`: with those that it is below, as `data.train`."""
    match value:
        case dict():
            return {name: _named(inner, f"{key}.{name}" if key else name, functions) for name, inner in value.items()}
        case list() if key == _COMMAND:
            return _command(value)
        case list():
            return [_named(inner, key, functions) for inner in value]
        case str():
            return _text(value, key, functions)
    return value


def _text(value: str, key: str, functions: ShippedFunctions) -> str:
    last = key.rpartition(".")[2]
    if key == _TRACKER_FOLDER:  # which the run makes
        return str(path_of(value).absolute())
    if key == _TRACKER_URI:
        return _uri(value)
    if key in _INTERPRETERS:
        return _program(value)
    if key.startswith(_SERVER_OPTIONS) and (os.path.isfile(value) or ("/" in value and os.path.exists(value))):
        return os.path.abspath(value)
    if is_own(value):
        place, _, name = value.rpartition(":")
        file = path_of(place)
        if file.suffix == ".py" and file.is_file():
            return f"{functions.add_file(file)}:{name}"
        if all(part.isidentifier() for part in place.split(".")):
            functions.add_module(place)
    if last in _PATHS and _path_in(value, last).exists():
        return str(path_of(value).absolute())
    return value


def _uri(value: str) -> str:
    """What is on a disk, as an address or without, is the run's to make."""
    for scheme in (_SQLITE, _FILES):
        if value.startswith(scheme) and not value.startswith(f"{scheme}/"):
            return f"{scheme}{Path(value.removeprefix(scheme)).absolute()}"
    is_folder = ":" not in value and ("/" in value or os.path.isdir(value))
    return str(path_of(value).absolute()) if is_folder else value


def _program(value: str) -> str:
    """A link to one stays that: by it an interpreter finds its environment."""
    file = os.path.expanduser(value)
    return os.path.abspath(file) if "/" in file or os.path.isfile(file) else value


def _command(words: list[str]) -> list[str]:
    """A program that is looked for by its name alone stays that."""
    first = os.path.dirname(words[0])
    return [
        os.path.abspath(word) if os.path.isfile(word) and (number or first) else word
        for number, word in enumerate(words)
    ]


def _path_in(value: str, key: str) -> Path:
    """The folder that has to be there: `run` may name a version of it, as RUN@N."""
    return path_of(split_version(value)[0] if key == "run" else value)
