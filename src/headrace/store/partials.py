"""Groups that a rollout function has begun and not finished, as files of a run: a file for each, and one for what the
function notes; of one for evaluation a file of notes for each held-out set. Sees bytes.

What `write` and `write_notes` were given survives a power cut once they return; a file is whole, or not there.
"""

from __future__ import annotations

import re
from collections.abc import Container
from pathlib import Path
from urllib.parse import quote

from headrace.store.errors import write_failed
from headrace.store.media.files import LOCAL, Files, write_whole
from headrace.store.segment import AttemptKey

PARTIALS_NAME = "partial"
"""The folder, within the run's."""
_NAME = re.compile(r"(\d+)-(\d+)-(\d+)\.group")


class Partials:
    def __init__(self, folder: Path, files: Files = LOCAL) -> None:
        self._folder = folder
        self._files = files

    def keys(self) -> list[AttemptKey]:
        """Of the groups that are there."""
        found = [_NAME.fullmatch(path.name) for path in self._files.inside(self._folder)]
        return sorted((int(name[1]), int(name[2]), int(name[3])) for name in found if name is not None)

    def has(self, key: AttemptKey) -> bool:
        return self._files.is_file(self._path(key))

    def read(self, key: AttemptKey) -> bytes | None:
        """None if there is none."""
        return self._read(self._path(key))

    def write(self, key: AttemptKey, data: bytes) -> None:
        """In the place of what was there. Raises DiskFull, StoreError."""
        self._write(self._path(key), data)

    def remove(self, key: AttemptKey) -> None:
        """If it is there. It may come back after a power cut."""
        self._files.remove(self._path(key))

    def keep(self, keys: Container[AttemptKey]) -> None:
        """Remove all others."""
        for key in self.keys():
            if key not in keys:
                self.remove(key)

    def read_notes(self, held_out: str | None = None) -> bytes | None:
        """Of training, or of the evaluation of the set of that name; None if there are none."""
        return self._read(self._notes(held_out))

    def write_notes(self, data: bytes, held_out: str | None = None) -> None:
        """In the place of those that were there. Raises DiskFull, StoreError."""
        self._write(self._notes(held_out), data)

    def _notes(self, held_out: str | None) -> Path:
        return self._folder / ("metadata.json" if held_out is None else f"metadata-{quote(held_out, safe='')}.json")

    def _path(self, key: AttemptKey) -> Path:
        epoch, position, attempt = key
        return self._folder / f"{epoch}-{position}-{attempt}.group"

    def _read(self, path: Path) -> bytes | None:
        try:
            return self._files.read(path)
        except FileNotFoundError:
            return None

    def _write(self, path: Path, data: bytes) -> None:
        if not self._files.is_folder(self._folder):
            try:
                self._files.make_folder(self._folder)
                self._files.sync(self._folder.parent)
            except OSError as error:
                raise write_failed(error, path) from error
        write_whole(path, data, self._files)
