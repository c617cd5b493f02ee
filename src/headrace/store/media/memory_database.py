"""A SQLite database in memory, with what a power cut leaves of it: a commit is durable from the next one on that is
made with `synchronous` FULL."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

Watch = Callable[[str, Path, object], None]
"""Told of each operation before it is done: its name, of what, and what with. What it raises is what happens instead;
an OSError, or sqlite3.Error of the operation `sql`, is a fault of the disk."""
Draw = Callable[[int], int]
"""A number from 0 to (exclusively) the one given."""

_NAMES = count()
"""Of databases, which SQLite knows by a name in the whole process."""
_TELL_NOTHING = ("SELECT", "PRAGMA")
"""How statements begin that change nothing."""


class Statement(NamedTuple):
    how: str
    """The connection's method."""
    sql: str
    parameters: Any = ()

    def run(self, connection: sqlite3.Connection) -> None:
        if self.how == "executescript":
            connection.executescript(self.sql)
        else:
            getattr(connection, self.how)(self.sql, self.parameters)


class MemoryDatabase:
    """There as long as this is, whoever is connected."""

    def __init__(self) -> None:
        self.uri = f"file:headrace-{next(_NAMES)}?mode=memory&cache=shared"
        self._kept = sqlite3.connect(self.uri, uri=True, isolation_level=None)
        self._kept.execute("PRAGMA foreign_keys = ON")
        self._commits: list[tuple[Statement, ...]] = []
        """All that ever were, from which it can be made again."""
        self._durable = 0
        """So many of them are."""

    def connect(self, path: Path, watch: Watch, closed: Callable[[], object]) -> MemoryConnection:
        """`path`: as the database is called. `closed`: called when the connection is."""
        made = sqlite3.connect(self.uri, uri=True, isolation_level=None, factory=MemoryConnection)
        made.database, made.path, made.watch, made.closed = self, path, watch, closed
        return made

    def committed(self, statements: tuple[Statement, ...], *, durable: bool) -> None:
        self._commits.append(statements)
        if durable:
            self.sync()

    def sync(self) -> None:
        self._durable = len(self._commits)

    def after_power_cut(self, draw: Draw) -> MemoryDatabase:
        """What was durable, and so many of the commits since then as `draw` says."""
        found = MemoryDatabase()
        found._commits = self._commits[: self._durable + draw(len(self._commits) - self._durable + 1)]
        for statements in found._commits:
            for statement in statements:
                statement.run(found._kept)
        found.sync()
        return found


class MemoryConnection(sqlite3.Connection):
    """Whose statements that change something are told of, and kept until they are committed."""

    database: MemoryDatabase
    path: Path
    watch: Watch
    closed: Callable[[], object]
    _begun: list[Statement] | None = None
    _is_durable = False

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql.startswith(_TELL_NOTHING):
            if sql.startswith("PRAGMA synchronous"):
                self._is_durable = sql.endswith("FULL")
            return super().execute(sql, parameters)
        self.watch("sql", self.path, (sql, parameters))
        done = super().execute(sql, parameters)
        self._done(Statement("execute", sql, parameters))
        return done

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        rows = list(parameters)
        self.watch("sql", self.path, (sql, rows))
        done = super().executemany(sql, rows)
        self._done(Statement("executemany", sql, rows))
        return done

    def executescript(self, script: str, /) -> sqlite3.Cursor:
        """A whole transaction."""
        self.watch("sql", self.path, script)
        done = super().executescript(script)
        self.database.committed((Statement("executescript", script),), durable=False)
        return done

    def close(self) -> None:
        super().close()
        self.closed()

    def _done(self, statement: Statement) -> None:
        if self._begun is None and not self.in_transaction:
            self.database.committed((statement,), durable=self._is_durable)
        elif self._begun is None:
            self._begun = [statement]
        else:
            self._begun.append(statement)
            if not self.in_transaction:
                if statement.sql == "COMMIT":
                    self.database.committed(tuple(self._begun), durable=self._is_durable)
                self._begun = None
