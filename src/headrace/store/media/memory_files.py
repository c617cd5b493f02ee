"""Files in memory, which a power cut loses as far as they were not synced."""

from __future__ import annotations

import errno
import io
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.store.errors import RunInUse
from headrace.store.media.files import Appending, Lock, Mode
from headrace.store.media.memory_database import Draw, MemoryConnection, MemoryDatabase, Watch


class PowerCut(BaseException):
    """The machine is off: whatever was to be done is not, and nobody there is told."""


@dataclass(eq=False, slots=True)
class _File:
    data: bytearray = field(default_factory=bytearray)
    synced: int = 0
    """So many of its first bytes are durable."""


@dataclass(eq=False, slots=True)
class _Link:
    to: str


@dataclass(eq=False, slots=True)
class _Folder:
    entries: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)
    """As of the last sync."""
    since: list[dict[str, _Node | None]] = field(default_factory=list)
    """What was changed since then, one step after another: by name what is there now."""

    def change(self, step: dict[str, _Node | None]) -> None:
        self.since.append(step)
        _apply(self.entries, step)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.since.clear()


_Node = _File | _Link | MemoryDatabase | _Folder


class MemoryFiles:
    """See `Files`. Several readers of a database see what its one writer has committed."""

    def __init__(self, watch: Watch = lambda operation, path, what: None) -> None:
        self._watch = watch
        self._root = _Folder()
        self._locked: set[Path] = set()
        self._open: dict[int, MemoryConnection] = {}
        """Connections, by number."""
        self._opened = 0

    def after_power_cut(self, draw: Draw, watch: Watch = lambda operation, path, what: None) -> MemoryFiles:
        """What is found when the machine is on again. Of bytes, names and commits that were not synced the first few
        are there, as many as `draw` says. Whoever has these files here open is on the machine that went off: its
        databases are closed."""
        for connection in list(self._open.values()):
            connection.rollback()
            connection.close()
        found = MemoryFiles(watch)
        found._root = _left(self._root, draw)
        return found

    def is_file(self, path: Path) -> bool:
        return isinstance(self._find(path), _File | MemoryDatabase)

    def is_folder(self, path: Path) -> bool:
        return isinstance(self._find(path), _Folder)

    def size(self, path: Path) -> int:
        return len(self._file(path).data)

    def inside(self, folder: Path) -> Sequence[Path]:
        node = self._find(folder)
        return [folder / name for name in sorted(node.entries)] if isinstance(node, _Folder) else ()

    def below(self, folder: Path) -> Sequence[Path]:
        inside = list(self.inside(folder))
        return sorted([*inside, *(path for each in inside for path in self.below(each))])

    def open(self, path: Path) -> io.BufferedIOBase:
        return io.BytesIO(self.read(path))

    def read(self, path: Path, offset: int = 0, length: int | None = None) -> bytes:
        data = self._file(path).data
        self._watch("read", path, len(data) if length is None else length)
        return bytes(data[offset:] if length is None else data[offset : offset + length])

    def write(self, path: Path, data: bytes) -> None:
        self._watch("write", path, data)
        self._folder(path.parent).change({path.name: _File(bytearray(data))})

    def append(self, path: Path, *, fresh: bool = False) -> Appending:
        node = self._find(path)
        if fresh:
            if node is not None:
                raise _error(errno.EEXIST, path)
            self._watch("make", path, None)
            node = _File()
            self._folder(path.parent).change({path.name: node})
        return _End(self._file(path), path, self._watch)

    def truncate(self, path: Path, size: int) -> None:
        self._watch("truncate", path, size)
        _truncate(self._file(path), size)

    def make_folder(self, path: Path) -> None:
        node = self._find(path)
        if node is not None and not isinstance(node, _Folder):
            raise _error(errno.EEXIST, path)
        if node is None:
            if path.parent != path:
                self.make_folder(path.parent)
            self._watch("make", path, None)
            self._folder(path.parent).change({path.name: _Folder()})

    def rename(self, path: Path, to: Path) -> None:
        node = self._find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if path.parent != to.parent:
            raise _error(errno.EXDEV, to)
        self._watch("rename", to, path.name)
        self._folder(to.parent).change({path.name: None, to.name: node})

    def remove(self, path: Path) -> None:
        if self._find(path) is not None:
            self._watch("remove", path, None)
            self._folder(path.parent).change({path.name: None})

    def sync(self, path: Path) -> None:
        node = self._find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        self._watch("sync", path, None)
        _sync(node)

    def link(self, path: Path, to: str) -> None:
        self._watch("link", path, to)
        self._folder(path.parent).change({path.name: _Link(to)})

    def linked(self, path: Path) -> str | None:
        node = self._find(path)
        return node.to if isinstance(node, _Link) else None

    def connect(self, path: Path, mode: Mode) -> sqlite3.Connection:
        node = self._find(path)
        if node is None and mode == "rwc":
            self._watch("make", path, None)
            node = MemoryDatabase()
            self._folder(path.parent).change({path.name: node})
        if not isinstance(node, MemoryDatabase):
            raise sqlite3.DatabaseError(f"{path} is no database")
        self._opened += 1
        number = self._opened
        connection = self._open[number] = node.connect(path, self._watch, lambda: self._open.pop(number, None))
        if mode == "ro":
            connection.execute("PRAGMA query_only = ON")
        return connection

    def lock(self, folder: Path) -> Lock:
        if folder in self._locked:
            raise RunInUse(f"{folder} is in use: wait for it to end, stop it, or choose another --dir")
        self._locked.add(folder)
        return _Held(self._locked, folder)

    def is_held(self, folder: Path) -> bool:
        return folder in self._locked

    def owner(self, folder: Path) -> int | None:
        return None

    def _find(self, path: Path) -> _Node | None:
        node: _Node | None = self._root
        for name in path.parts[1:] if path.is_absolute() else path.parts:
            node = node.entries.get(name) if isinstance(node, _Folder) else None
        return node

    def _folder(self, path: Path) -> _Folder:
        node = self._find(path)
        if not isinstance(node, _Folder):
            raise _error(errno.ENOENT if node is None else errno.ENOTDIR, path)
        return node

    def _file(self, path: Path) -> _File:
        node = self._find(path)
        if not isinstance(node, _File):
            raise _error(errno.EISDIR if isinstance(node, _Folder) else errno.ENOENT, path)
        return node


class _End:
    """See `Appending`."""

    def __init__(self, file: _File, path: Path, watch: Watch) -> None:
        self._file = file
        self._path = path
        self._watch = watch

    def write(self, data: bytes) -> None:
        self._watch("append", self._path, data)
        self._file.data += data

    def truncate(self, size: int) -> None:
        self._watch("truncate", self._path, size)
        _truncate(self._file, size)

    def sync(self) -> None:
        self._watch("sync", self._path, len(self._file.data) - self._file.synced)
        _sync(self._file)

    def close(self) -> None:
        pass


class _Held:
    def __init__(self, locked: set[Path], folder: Path) -> None:
        self._locked = locked
        self._folder = folder

    def release(self) -> None:
        self._locked.discard(self._folder)


def _truncate(file: _File, size: int) -> None:
    del file.data[size:]
    file.synced = min(file.synced, size)


def _sync(node: _Node) -> None:
    if isinstance(node, _File):
        node.synced = len(node.data)
    elif isinstance(node, _Folder | MemoryDatabase):
        node.sync()


def _apply(entries: dict[str, _Node], step: dict[str, _Node | None]) -> None:
    for name, node in step.items():
        entries.pop(name, None)
        if node is not None:
            entries[name] = node


def _left(node: _Node, draw: Draw) -> Any:
    """What a power cut leaves of it, as a copy."""
    if isinstance(node, _Folder):
        entries = dict(node.durable)
        for step in node.since[: draw(len(node.since) + 1)]:
            _apply(entries, step)
        left = {name: _left(entries[name], draw) for name in sorted(entries)}
        return _Folder(left, dict(left))
    if isinstance(node, _File):
        size = node.synced + draw(len(node.data) - node.synced + 1)
        return _File(node.data[:size], size)
    return node.after_power_cut(draw) if isinstance(node, MemoryDatabase) else node


def _error(number: int, path: Path) -> OSError:
    return OSError(number, errno.errorcode[number], str(path))
