"""The table's index, the samplers and the loader's choice as they are plainest: every question looks at every row. The
oracle of `experience/index.py`, `experience/samplers.py` and `experience/loader.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.experience.leases import Consumer, Lease, NewRow, Row, RowId, StaleLease, TableError
from headrace.experience.sample import GroupKey

PlainSampler = Callable[[Mapping[RowId, Row]], Sequence[RowId]]


@dataclass(slots=True)
class PlainQueue:
    """One consumer's view of the rows."""

    consumer: Consumer
    missing: dict[RowId, int] = field(default_factory=dict)
    """Rows not ready yet: how many columns (unit `row`) are still missing."""
    ready: dict[RowId, Row] = field(default_factory=dict)
    group_missing: dict[GroupKey, int] = field(default_factory=dict)
    """Unit `group`: how many rows of the group are not complete yet."""
    leased: dict[RowId, int] = field(default_factory=dict)
    """Row to lease."""
    pending: dict[RowId, None] = field(default_factory=dict)
    """Rows not acked yet."""


class PlainIndex:
    def __init__(self, consumers: Iterable[Consumer]) -> None:
        self._queues = {consumer.name: PlainQueue(consumer) for consumer in consumers}
        self._readers: dict[str, list[PlainQueue]] = {}
        for queue in self._queues.values():
            for column in sorted(queue.consumer.reads):
                self._readers.setdefault(column, []).append(queue)
        self._rows: dict[RowId, Row] = {}
        self._groups: dict[GroupKey, list[RowId]] = {}
        self._unacked: dict[RowId, int] = {}
        self._leases: dict[int, Lease] = {}
        self._next_row = 0
        self._next_lease = 0

    @property
    def rows(self) -> int:
        return len(self._rows)

    @property
    def groups(self) -> int:
        return len(self._groups)

    def has_group(self, key: GroupKey) -> bool:
        return key in self._groups

    def put(self, key: GroupKey, rows: Sequence[NewRow]) -> list[RowId]:
        """Add a group's rows, all or none."""
        if key in self._groups:
            raise TableError(f"group {key} is in the table already")
        if not rows:
            raise TableError(f"group {key} has no rows")
        ids = list(range(self._next_row, self._next_row + len(rows)))
        self._next_row += len(rows)
        self._groups[key] = ids
        added = [Row(row_id, header, columns) for row_id, (header, columns) in zip(ids, rows, strict=True)]
        consumers = len(self._queues)
        for row in added:
            self._rows[row.row_id] = row
            self._unacked[row.row_id] = consumers
        for queue in self._queues.values():
            if queue.consumer.unit == "group":
                queue.group_missing[key] = len(added)
            for row in added:
                queue.pending[row.row_id] = None
                queue.missing[row.row_id] = len(queue.consumer.reads)
                present = sum(column in row.columns for column in queue.consumer.reads)
                self._fill(queue, row, present)
        return ids

    def write(self, row_ids: Sequence[RowId], column: str, values: Sequence[Any], lease: Lease | None = None) -> None:
        """Fill a column that these rows lack. With `lease`, only while it is held."""
        if lease is not None:
            self._held(lease)
        rows = [self._row(row_id) for row_id in row_ids]
        for row in rows:
            if column in row.columns:
                raise TableError(f"row {row.row_id} of group {row.group} has column {column!r} already")
        for row, value in zip(rows, values, strict=True):
            row.columns[column] = value
            for queue in self._readers.get(column, ()):
                if row.row_id in queue.missing:
                    self._fill(queue, row, 1)

    def write_group(self, key: GroupKey, column: str, value: Any) -> None:
        """The same value for every row of a group."""
        ids = self._group(key)
        self.write(ids, column, [value] * len(ids))

    def ready(self, consumer: str) -> Mapping[RowId, Row]:
        """Rows that `consumer` could lease now, oldest first."""
        return self._queue(consumer).ready

    def lease(self, consumer: str, row_ids: Sequence[RowId], expires: float) -> Lease:
        """Hand ready rows to `consumer`."""
        queue = self._queue(consumer)
        for row_id in row_ids:
            if row_id not in queue.ready:
                raise TableError(f"row {row_id} is not ready for {consumer}")
        lease = Lease(self._next_lease, consumer, [queue.ready.pop(row_id) for row_id in row_ids], expires)
        self._next_lease += 1
        self._leases[lease.lease_id] = lease
        for row_id in row_ids:
            queue.leased[row_id] = lease.lease_id
        return lease

    def renew(self, lease: Lease, expires: float) -> None:
        self._held(lease)
        lease.expires = expires

    def ack(self, lease: Lease) -> None:
        """`consumer` is done with these rows. Rows that nobody else needs leave the table."""
        self._held(lease)
        del self._leases[lease.lease_id]
        queue = self._queue(lease.consumer)
        for row in lease.rows:
            row_id = row.row_id
            if queue.leased.pop(row_id, None) is None:
                continue
            del queue.pending[row_id]
            self._unacked[row_id] -= 1
            if not self._unacked[row_id]:
                self._forget(row)

    def give_back(self, lease: Lease) -> None:
        """End a lease without ack: its rows are ready again."""
        self._held(lease)
        del self._leases[lease.lease_id]
        queue = self._queue(lease.consumer)
        for row in lease.rows:
            if queue.leased.pop(row.row_id, None) is not None:
                queue.ready[row.row_id] = row
        queue.ready = dict(sorted(queue.ready.items()))

    def expire(self, now: float) -> list[Lease]:
        """Take back what was leased until `now` or earlier."""
        expired = [lease for lease in self._leases.values() if lease.expires <= now]
        for lease in expired:
            self.give_back(lease)
        return expired

    def next_expiry(self, consumer: str) -> float | None:
        """When the first of this consumer's leases ends, unless renewed."""
        return min((lease.expires for lease in self._leases.values() if lease.consumer == consumer), default=None)

    def remove(self, key: GroupKey) -> None:
        """Take a group out, whoever holds its rows; a lease keeps its other rows."""
        for row_id in self._group(key).copy():
            row = self._rows[row_id]
            for queue in self._queues.values():
                queue.missing.pop(row_id, None)
                queue.ready.pop(row_id, None)
                queue.pending.pop(row_id, None)
                queue.group_missing.pop(key, None)
                if (lease_id := queue.leased.pop(row_id, None)) is not None:
                    lease = self._leases[lease_id]
                    lease.rows = [held for held in lease.rows if held.row_id != row_id]
            self._forget(row)

    def _fill(self, queue: PlainQueue, row: Row, columns: int) -> None:
        left = queue.missing[row.row_id] - columns
        if left:
            queue.missing[row.row_id] = left
            return
        del queue.missing[row.row_id]
        if queue.consumer.unit == "row":
            queue.ready[row.row_id] = row
            return
        queue.group_missing[row.group] -= 1
        if not queue.group_missing[row.group]:
            del queue.group_missing[row.group]
            for row_id in self._groups[row.group]:
                queue.ready[row_id] = self._rows[row_id]

    def _forget(self, row: Row) -> None:
        del self._rows[row.row_id]
        del self._unacked[row.row_id]
        siblings = self._groups[row.group]
        siblings.remove(row.row_id)
        if not siblings:
            del self._groups[row.group]

    def _held(self, lease: Lease) -> None:
        if self._leases.get(lease.lease_id) is not lease:
            raise StaleLease(f"lease {lease.lease_id} of {lease.consumer} has ended; its rows went back to the table")

    def _queue(self, consumer: str) -> PlainQueue:
        if consumer not in self._queues:
            raise TableError(f"no consumer {consumer!r}; the table has {', '.join(self._queues)}")
        return self._queues[consumer]

    def _row(self, row_id: RowId) -> Row:
        if row_id not in self._rows:
            raise TableError(f"row {row_id} is not in the table (any more)")
        return self._rows[row_id]

    def _group(self, key: GroupKey) -> list[RowId]:
        if key not in self._groups:
            raise TableError(f"group {key} is not in the table (any more)")
        return self._groups[key]


def whole_groups(ready: Mapping[RowId, Row]) -> list[RowId]:
    """All ready rows of the oldest ready group."""
    first = next(iter(ready.values()), None)
    return [] if first is None else [row.row_id for row in ready.values() if row.group == first.group]


def one_row(ready: Mapping[RowId, Row]) -> list[RowId]:
    """The oldest ready row."""
    return list(ready)[:1]


def sealed_batch(flow: Any) -> PlainSampler:
    """All rows of the batch in order of their keys, once it is sealed and all are ready. For consumers of unit `batch`,
    which read `batch`."""

    def sampler(ready: Mapping[RowId, Row]) -> list[RowId]:
        if not flow.is_sealed:
            return []
        rows = [row for row in ready.values() if row.columns["batch"] == flow.batch]
        return in_order(rows) if len(rows) == flow.rows_of_batch() else []

    return sampler


def in_order(rows: Iterable[Row]) -> list[RowId]:
    """By key: so that no result depends on which group came first."""
    return [row.row_id for row in sorted(rows, key=lambda row: row.key)]


def token_budget(max_tokens: int, length: Callable[[Row], int]) -> PlainSampler:
    """As many ready rows as fit into `max_tokens` tokens, oldest first, and at least one.

    A row that does not fit is passed over for smaller ones behind it; it comes first in a later choice.
    """

    def sampler(ready: Mapping[RowId, Row]) -> list[RowId]:
        chosen: list[RowId] = []
        room = max_tokens
        for row in ready.values():
            tokens = length(row)
            if not chosen or tokens <= room:
                chosen.append(row.row_id)
                room -= tokens
            if room <= 0:
                break
        return chosen

    return sampler


def choose(
    flow: Any,
    batch: int,
    handed_out: int,
    ready: Mapping[RowId, Row],
    *,
    max_tokens: int,
    streaming: bool,
    length: Callable[[Row], int],
) -> list[RowId]:
    """What `StreamingLoader` leases next."""
    sealed = flow.is_sealed
    if not (streaming or sealed):
        return []
    rows = {i: row for i, row in ready.items() if row.columns["batch"] == batch}
    if sealed and handed_out + len(rows) >= flow.rows_of_batch():
        return in_order(rows.values())
    if sum(map(length, rows.values())) < max_tokens:
        return []
    return list(token_budget(max_tokens, length)(rows))
