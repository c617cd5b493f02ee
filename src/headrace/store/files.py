"""Files that are whole or absent after a power cut."""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path

from headrace.store.errors import write_failed


def sync_path(path: Path) -> None:
    """fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: bytes) -> None:
    """Write beside, fsync, rename over `path`, fsync the folder. Raises StoreError, as DiskFull."""
    beside = path.with_name(path.name + ".new")
    try:
        beside.write_bytes(data)
        sync_path(beside)
        os.replace(beside, path)
        sync_path(path.parent)
    except OSError as error:
        with suppress(OSError):  # where nothing can be written nothing can be removed
            beside.unlink()
        raise write_failed(error, path) from error


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove(path: Path) -> None:
    """Remove a file or a folder with all in it, if it is there; of a link, only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
