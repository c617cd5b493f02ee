"""One SQLite connection whose errors say what to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headrace.store.errors import RunDamaged, RunMissing, StoreError, disk_full, is_nearly_full
from headrace.store.media.files import BUSY_S, LOCAL, Files
from headrace.store.tables import RUN, Layout

LOGS = ("-wal", "-shm")
"""How names end of what SQLite keeps beside a database that is open, and leaves there when its process is killed."""


class Database:
    """run.db or another file of a run, opened by one thread.

    Plain statements commit by themselves. A commit survives the kill of this process at once, and a power cut
    from the next durable transaction on (write-ahead log, `synchronous=NORMAL`).
    """

    def __init__(self, path: Path, *, read_only: bool = False, layout: Layout = RUN, files: Files = LOCAL) -> None:
        self._path = path
        self._layout = layout
        if not files.is_file(path):
            raise RunMissing(f"{path.parent} holds no run (there is no {path.name}); check the path")
        with self._explained():
            self._connection = files.connect(path, "ro" if read_only else "rw")
        try:
            self._check_format(read_only)
            self.execute("PRAGMA temp_store = MEMORY")
            if not read_only:
                self.execute("PRAGMA foreign_keys = ON")
                self.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            self._connection.close()
            raise

    @staticmethod
    def create(
        path: Path,
        values: Mapping[str, str] = MappingProxyType({}),
        layout: Layout = RUN,
        files: Files = LOCAL,
    ) -> None:
        """Make the file with its tables and the run's values; it appears whole or not at all. Nothing may have one of
        that name open."""
        beside = path.with_name(path.name + ".new")
        for left in (beside, path):
            for log in LOGS:
                files.remove(left.with_name(left.name + log))  # SQLite would read it into the new file
        files.remove(beside)
        try:
            with closing(files.connect(beside, "rwc")) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.executescript(f"BEGIN;{layout.schema}COMMIT;")
                if values:
                    connection.executemany("INSERT INTO run VALUES (?, ?)", values.items())
        except sqlite3.Error as error:
            raise _explain(error, path, layout) from error
        files.sync(beside)
        files.rename(beside, path)
        files.sync(path.parent)

    @property
    def is_of_now(self) -> bool:
        """Whether its format is the one that is written, and not an older one."""
        ((version,),) = self.rows("PRAGMA user_version")
        return bool(version == self._layout.version)

    def check_integrity(self) -> None:
        """Raises RunDamaged."""
        found = self.rows("PRAGMA integrity_check(1)")
        if found != [("ok",)]:
            raise _damaged(self._path, self._layout, str(found[0][0]).splitlines()[-1])

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run one statement; how many rows it changed."""
        with self._explained():
            return self._connection.execute(sql, parameters).rowcount

    def function(self, name: str, arguments: int, function: Callable[..., Any]) -> None:
        """Have SQL call `function`, whose value follows from its arguments alone."""
        self._connection.create_function(name, arguments, function, deterministic=True)

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._explained():
            return self._connection.execute(sql, parameters).fetchall()

    @contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[None]:
        """All statements inside commit together, or not at all. Nests: an inner failure undoes the inner part.

        `durable`: once committed, this transaction and all before it survive a power cut.
        """
        if self._connection.in_transaction:
            if durable:
                raise StoreError("a durable transaction cannot be part of another one")
            with self._nested():
                yield
            return
        if durable:
            self.execute("PRAGMA synchronous = FULL")
        try:
            self.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.execute("COMMIT")
            except BaseException:
                self._undo("ROLLBACK")
                raise
        finally:
            if durable:
                self.execute("PRAGMA synchronous = NORMAL")

    @contextmanager
    def _nested(self) -> Iterator[None]:
        self.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            self._undo("ROLLBACK TO part")
            self._undo("RELEASE part")
            raise
        self.execute("RELEASE part")

    def _undo(self, sql: str) -> None:
        # A full disk makes SQLite roll the whole transaction back by itself.
        if self._connection.in_transaction:
            self.execute(sql)

    def close(self) -> None:
        with self._explained():
            self._connection.close()

    def _check_format(self, read_only: bool) -> None:
        ((application,),) = self.rows("PRAGMA application_id")
        ((version,),) = self.rows("PRAGMA user_version")
        if application != self._layout.application_id:
            raise _damaged(self._path, self._layout, f"it is not the database of {self._layout.what}")
        oldest = self._layout.oldest_read if read_only else self._layout.version
        if not oldest <= version <= self._layout.version:
            raise StoreError(
                f"{self._path} has format {version}, this headrace reads format {self._layout.version}: "
                f"{self._layout.otherwise}"
            )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _explain(error, self._path, self._layout) from error


def _explain(error: sqlite3.Error, path: Path, layout: Layout) -> Exception:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and is_nearly_full(path)):
        return disk_full(path)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _damaged(path, layout, str(error))
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return StoreError(f"cannot use {path}: {error}; check the disk and the folder's permissions")
    if code == sqlite3.SQLITE_BUSY:
        return StoreError(
            f"waited {BUSY_S:.0f} s for {path}, which another program keeps locked: close whatever else has it open"
        )
    return error


def _damaged(path: Path, layout: Layout, detail: str) -> RunDamaged:
    return RunDamaged(f"{path} is damaged ({detail}): put back a copy of it, or {layout.mend}")
