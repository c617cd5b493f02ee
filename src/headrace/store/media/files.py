"""The files of a run: what is asked of them, and those of this machine."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path
from typing import Literal, Protocol

from headrace.store.errors import write_failed
from headrace.store.media.lock import RunLock, is_held, owner

BUSY_S = 10.0
"""A database that another process keeps locked is waited for so long."""

Mode = Literal["ro", "rw", "rwc"]
"""Of a database: only to be read; to be written; made if it is not there."""


class Appending(Protocol):
    """The end of a file, open to be written."""

    def write(self, data: bytes) -> None:
        """All of it. Raises OSError; then part of it may be there."""

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """What was written survives a power cut; its name only once the folder is synced."""

    def close(self) -> None: ...


class Lock(Protocol):
    def release(self) -> None: ...


class Files(Protocol):
    """All that a run's store does with files. What is missing raises FileNotFoundError, what fails OSError."""

    def is_file(self, path: Path) -> bool: ...

    def is_folder(self, path: Path) -> bool: ...

    def size(self, path: Path) -> int:
        """In bytes."""

    def inside(self, folder: Path) -> Sequence[Path]:
        """Files and folders in it, by name; none if it is not there."""

    def below(self, folder: Path) -> Sequence[Path]:
        """The same, and what is in those folders."""

    def open(self, path: Path) -> BufferedIOBase:
        """To be read."""

    def read(self, path: Path, offset: int = 0, length: int | None = None) -> bytes:
        """At most `length` bytes from `offset` on."""

    def write(self, path: Path, data: bytes) -> None:
        """In the place of what is there. Not durable."""

    def append(self, path: Path, *, fresh: bool = False) -> Appending:
        """The end of a file that is there; if `fresh`, of a new one, which must not be."""

    def truncate(self, path: Path, size: int) -> None: ...

    def make_folder(self, path: Path) -> None:
        """With those above it; one that is there stays."""

    def rename(self, path: Path, to: Path) -> None:
        """In one folder; over a file that is there."""

    def remove(self, path: Path) -> None:
        """A file, a link, or a folder with all in it, if it is there."""

    def sync(self, path: Path) -> None:
        """A file's bytes, or a folder's names, survive a power cut."""

    def link(self, path: Path, to: str) -> None:
        """To a folder beside it."""

    def linked(self, path: Path) -> str | None:
        """Where a link leads; None if it is none."""

    def connect(self, path: Path, mode: Mode) -> sqlite3.Connection:
        """A database, which commits by itself. Raises sqlite3.Error."""

    def lock(self, folder: Path) -> Lock:
        """Of a run, until it is released or this process ends. Raises RunInUse, StoreError."""

    def is_held(self, folder: Path) -> bool:
        """Whether some process has the lock."""

    def owner(self, folder: Path) -> int | None:
        """The process that last took the lock, if it is known."""


class LocalFiles:
    """Of this machine."""

    def is_file(self, path: Path) -> bool:
        return path.is_file()

    def is_folder(self, path: Path) -> bool:
        return path.is_dir()

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def inside(self, folder: Path) -> Sequence[Path]:
        try:
            return sorted(folder.iterdir())
        except FileNotFoundError:
            return ()

    def below(self, folder: Path) -> Sequence[Path]:
        return sorted(folder.rglob("*"))

    def open(self, path: Path) -> BufferedIOBase:
        return path.open("rb")

    def read(self, path: Path, offset: int = 0, length: int | None = None) -> bytes:
        with path.open("rb", buffering=0) as file:
            if length is not None:
                return os.pread(file.fileno(), length, offset)
            file.seek(offset)
            return file.readall()

    def write(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)

    def append(self, path: Path, *, fresh: bool = False) -> Appending:
        how = os.O_CREAT | os.O_EXCL if fresh else 0
        return _End(os.open(path, os.O_WRONLY | os.O_APPEND | how, 0o644))

    def truncate(self, path: Path, size: int) -> None:
        os.truncate(path, size)

    def make_folder(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def rename(self, path: Path, to: Path) -> None:
        os.rename(path, to)

    def remove(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def sync(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def link(self, path: Path, to: str) -> None:
        path.symlink_to(to, target_is_directory=True)

    def linked(self, path: Path) -> str | None:
        return os.readlink(path) if path.is_symlink() else None

    def connect(self, path: Path, mode: Mode) -> sqlite3.Connection:
        uri = f"{path.resolve().as_uri()}?mode={mode}"
        return sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None)

    def lock(self, folder: Path) -> Lock:
        return RunLock(folder)

    def is_held(self, folder: Path) -> bool:
        return is_held(folder)

    def owner(self, folder: Path) -> int | None:
        return owner(folder)


class _End:
    """See `Appending`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


LOCAL: Files = LocalFiles()


def sync_path(path: Path) -> None:
    """fsync a file or a folder of this machine."""
    LOCAL.sync(path)


def write_whole(path: Path, data: bytes, files: Files = LOCAL) -> None:
    """Write beside, fsync, rename over `path`, fsync the folder: whole or absent after a power cut. Raises StoreError,
    as DiskFull."""
    beside = path.with_name(path.name + ".new")
    try:
        files.write(beside, data)
        files.sync(beside)
        files.rename(beside, path)
        files.sync(path.parent)
    except OSError as error:
        with suppress(OSError):  # where nothing can be written nothing can be removed
            files.remove(beside)
        raise write_failed(error, path) from error


@dataclass(frozen=True, slots=True)
class Digest:
    """Of a file."""

    size: int
    """Bytes."""
    sha256: str
    boxes: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    """Of each tensor in it that is part of a larger one: `whole`, the shape of that; where it `begins` there; and its
    own `shape`."""


def digest_of(path: Path, files: Files = LOCAL) -> Digest:
    """Blocking; other threads go on meanwhile."""
    return Digest(files.size(path), sha256_of(path, files))


def sha256_of(path: Path, files: Files = LOCAL) -> str:
    with files.open(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove(path: Path) -> None:
    """Remove a file or a folder of this machine with all in it, if it is there; of a link, only the link."""
    LOCAL.remove(path)
