"""The arguments that every kind of run has, checked."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.config.errors import ConfigError
from headrace.config.values.paths import path_of


def folder_of(dir: object) -> Path | None:
    """Of the argument `dir`. Raises ConfigError."""
    if dir is None:
        return None
    if not isinstance(dir, str | os.PathLike):
        raise ConfigError(f"dir is {dir!r:.80}, of type {type(dir).__name__}; give the path of a folder")
    if not str(dir):
        raise ConfigError("dir is empty; give a folder")
    return path_of(Path(dir))


def check_resume(resume: object) -> None:
    """Raises ConfigError unless it is one of two."""
    if not isinstance(resume, bool):
        raise ConfigError(f"resume is {resume!r:.80}; give True or False")
