"""Metrics and events, as JSON, and the status: what a run tells of itself."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from headrace.store.media.database import Database
from headrace.store.tables import STATUSES


def write_status(database: Database, status: str) -> None:
    """Raises ValueError for one that there is not."""
    if status not in STATUSES:
        raise ValueError(f"no status {status!r}; it is one of {', '.join(STATUSES)}")
    database.execute("UPDATE run SET value = ? WHERE name = 'status'", (status,))


@dataclass(frozen=True, slots=True)
class MetricRow:
    id: int
    branch: int
    number: int
    at: float
    """Seconds since the epoch."""
    record: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EventRow:
    id: int
    at: float
    """Seconds since the epoch."""
    kind: str
    data: dict[str, Any]


class MetricsReader:
    """Records of versions. Those of versions that a restore took back are kept, but not read."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, kind: str, after_id: int = 0) -> list[MetricRow]:
        """Records of a kind by version, then in the order written; only those newer than the record `after_id`."""
        rows = self._database.rows(
            "SELECT id, m.branch, number, at, record FROM metrics m JOIN lineage l "
            "ON m.branch = l.branch AND m.number <= l.upto WHERE kind = ? AND id > ? ORDER BY number, id",
            (kind, after_id),
        )
        return [MetricRow(id, branch, number, at, json.loads(text)) for id, branch, number, at, text in rows]

    def entries(self, kinds: tuple[str, ...], after_id: int, limit: int) -> list[tuple[str, MetricRow]]:
        """(kind, record) in the order written, of the first so many that are newer than the record `after_id`."""
        rows = self._database.rows(
            "SELECT kind, id, m.branch, number, at, record FROM metrics m JOIN lineage l "
            "ON m.branch = l.branch AND m.number <= l.upto "
            f"WHERE kind IN ({', '.join('?' * len(kinds))}) AND id > ? ORDER BY id LIMIT ?",
            (*kinds, after_id, limit),
        )
        return [(kind, MetricRow(id, b, number, at, json.loads(text))) for kind, id, b, number, at, text in rows]

    def newest_number(self, kinds: tuple[str, ...], upto_id: int) -> int | None:
        """The highest version among the records up to `upto_id`; None if there is none."""
        ((number,),) = self._database.rows(
            "SELECT max(number) FROM metrics m JOIN lineage l ON m.branch = l.branch AND m.number <= l.upto "
            f"WHERE kind IN ({', '.join('?' * len(kinds))}) AND id <= ?",
            (*kinds, upto_id),
        )
        return None if number is None else int(number)

    def newest_of_branches(self, kind: str, after_id: int = 0) -> list[MetricRow]:
        """The last record of a kind on every branch, also on those that a restore left; only those newer than the
        record `after_id`."""
        rows = self._database.rows(
            "SELECT id, branch, number, at, record FROM metrics "
            "WHERE id IN (SELECT max(id) FROM metrics WHERE kind = ? AND id > ? GROUP BY branch) ORDER BY branch",
            (kind, after_id),
        )
        return [MetricRow(id, branch, number, at, json.loads(text)) for id, branch, number, at, text in rows]


class Metrics(MetricsReader):
    def write(self, branch: int, number: int, now: float, record: dict[str, Any], *, kind: str = "batch") -> None:
        """A record of version (branch, number). `now` is in seconds since the epoch."""
        self._database.execute(
            "INSERT INTO metrics (kind, branch, number, at, record) VALUES (?, ?, ?, ?, ?)",
            (kind, branch, number, now, json.dumps(record)),
        )

    def replace(self, branch: int, number: int, now: float, record: dict[str, Any], *, kind: str) -> None:
        """The same, in place of every earlier record of this kind on the branch."""
        with self._database.transaction():
            self._database.execute("DELETE FROM metrics WHERE kind = ? AND branch = ?", (kind, branch))
            self.write(branch, number, now, record, kind=kind)


class EventsReader:
    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, after_id: int = 0) -> list[EventRow]:
        """Events newer than the event `after_id`, in the order written."""
        rows = self._database.rows("SELECT id, at, kind, data FROM events WHERE id > ? ORDER BY id", (after_id,))
        return [EventRow(id, at, kind, json.loads(text)) for id, at, kind, text in rows]


class Events(EventsReader):
    def write(self, now: float, kind: str, data: dict[str, Any]) -> None:
        """`now` is in seconds since the epoch."""
        self._database.execute("INSERT INTO events (at, kind, data) VALUES (?, ?, ?)", (now, kind, json.dumps(data)))
