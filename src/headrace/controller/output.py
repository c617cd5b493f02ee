"""The folder in which an offline trainer leaves its model and its summary."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from headrace.config import ConfigError
from headrace.store import DiskFull
from headrace.store.errors import write_failed
from headrace.store.files import remove, sync_path, write_whole


class OutputFolder:
    """Holds a whole model at any moment once it held one: a kill between the two renames leaves it as `model.old`,
    and the next `claim` puts it back."""

    def __init__(self, folder: Path) -> None:
        self.model = folder / "model"
        self._folder = folder
        self._fresh = folder / "model.new"
        self._aside = folder / "model.old"

    def claim(self) -> None:
        """Make the folder, and see that it can be written, before training depends on it. Raises ConfigError."""
        if self._folder.exists() and not self._folder.is_dir():
            raise ConfigError(f"the output folder {self._folder} is a file; give another --dir")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            remove(self._fresh)
            self._fresh.mkdir()
            self._put_back()
        except OSError as error:
            raise ConfigError(
                f"the output folder {self._folder} cannot be written: {error.strerror}; correct its permissions, or "
                "give another --dir"
            ) from error

    def replace_model(self, export: Callable[[Path], None]) -> None:
        """Have `export` fill an empty folder, and put it in the model's place.

        Raises DiskFull or another StoreError; the model that was there is whole then.
        """
        with self._writing(self.model):
            export(self._fresh)
            for path in (*self._fresh.iterdir(), self._fresh):
                sync_path(path)
            remove(self._aside)
            if self.model.exists():
                self.model.rename(self._aside)
            self._fresh.rename(self.model)
            sync_path(self._folder)
            remove(self._aside)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Raises DiskFull or another StoreError."""
        path = self._folder / "summary.json"
        with self._writing(path):
            write_whole(path, (json.dumps(summary, indent=2) + "\n").encode())

    def _put_back(self) -> None:
        if self._aside.exists() and not self.model.exists():
            self._aside.rename(self.model)

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            remove(self._fresh)
            self._put_back()
            # Native writers wrap the system's error in types of their own, the tokenizer's in a plain Exception.
            failure = error if isinstance(error, DiskFull) else write_failed(error, path)
            if isinstance(failure, DiskFull):
                raise DiskFull(
                    f"no space left while writing {path}: free space on its disk, or give another --dir, and run the "
                    "command again; what was there before is intact"
                ) from error
            if isinstance(error, OSError | SafetensorError):
                raise failure from error
            raise
