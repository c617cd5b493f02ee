"""Which rows are ready for whom: the table's logic, apart from its bytes and its waits.

Invariants: a row is leased by a consumer at most once at a time; it is acked by a consumer at most once, unless what
that wrote is lost; it leaves when every consumer has acked it, or when its group is removed; a lease that expired can
neither write nor ack.

Every event costs O(log n) for each row that it is about: nothing looks at all rows, groups or leases, but for `lose`,
which follows the death of a process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from headrace.experience.consumer_queue import ConsumerQueue
from headrace.experience.leases import Consumer, Lease, Lost, NewRow, Row, RowId, StaleLease, TableError
from headrace.experience.ready_rows import ReadyRows
from headrace.experience.sample import GroupKey

Sampler = Callable[[ReadyRows], Sequence[RowId]]
"""Chooses among ready rows; an empty choice means: wait for more."""


class TableIndex:
    def __init__(self, consumers: Iterable[Consumer]) -> None:
        self._rows: dict[RowId, Row] = {}
        self._groups: dict[GroupKey, dict[RowId, None]] = {}
        self._filled: dict[str, None] = {}
        self._queues = {
            consumer.name: ConsumerQueue(consumer, self._rows, self._groups, self._note_filled)
            for consumer in consumers
        }
        self._readers: dict[str, list[ConsumerQueue]] = {}
        for queue in self._queues.values():
            for column in sorted(queue.consumer.reads):
                self._readers.setdefault(column, []).append(queue)
        self._unacked: dict[RowId, int] = {}
        self._leases: dict[int, Lease] = {}
        self._settled: dict[GroupKey, None] = {}
        self._settled_leases: dict[int, None] = {}
        self._no_end_before = math.inf
        """No lease ends before."""
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

    def row(self, row_id: RowId) -> Row:
        """Raises TableError."""
        if row_id not in self._rows:
            raise TableError(f"row {row_id} is not in the table (any more)")
        return self._rows[row_id]

    def put(self, key: GroupKey, rows: Sequence[NewRow], seen_by: Collection[str] = ()) -> list[RowId]:
        """Add a group's rows, all or none. `seen_by`: consumers that are done with them."""
        if key in self._groups:
            raise TableError(f"group {key} is in the table already")
        if not rows:
            raise TableError(f"group {key} has no rows")
        ids = list(range(self._next_row, self._next_row + len(rows)))
        self._next_row += len(rows)
        self._groups[key] = dict.fromkeys(ids)
        added = [Row(row_id, header, columns) for row_id, (header, columns) in zip(ids, rows, strict=True)]
        unseen = sum(name not in seen_by for name in self._queues)
        for row in added:
            self._rows[row.row_id] = row
            self._unacked[row.row_id] = unseen
        for name, queue in self._queues.items():
            if name in seen_by:
                queue.acked.update(dict.fromkeys(ids))
            else:
                queue.enter(key, added)
        return ids

    def write(self, row_ids: Sequence[RowId], column: str, values: Sequence[Any], lease: Lease | None = None) -> None:
        """Fill a column that these rows lack. With `lease`, only while it is held."""
        if lease is not None:
            self._held(lease)
        rows = [self.row(row_id) for row_id in row_ids]
        for row in rows:
            if column in row.columns:
                raise TableError(f"row {row.row_id} of group {row.group} has column {column!r} already")
        for row, value in zip(rows, values, strict=True):
            row.columns[column] = value
            for queue in self._readers.get(column, ()):
                if row.row_id in queue.missing:
                    queue.fill(row, 1)

    def write_group(self, key: GroupKey, column: str, value: Any) -> None:
        """The same value for every row of a group."""
        ids = list(self._group(key))
        self.write(ids, column, [value] * len(ids))

    def ready(self, consumer: str) -> ReadyRows:
        """Rows that `consumer` could lease now, oldest first."""
        return self._queue(consumer).ready

    def newly_ready(self) -> list[str]:
        """The consumers for whom rows have become ready since this was asked last."""
        filled, self._filled = list(self._filled), {}
        return filled

    def lease(self, consumer: str, row_ids: Sequence[RowId], expires: float) -> Lease:
        """Hand ready rows to `consumer`."""
        queue = self._queue(consumer)
        for row_id in row_ids:
            if row_id not in queue.ready:
                raise TableError(f"row {row_id} is not ready for {consumer}")
        rows = [queue.ready.take(row_id) for row_id in row_ids]
        groups = tuple(dict.fromkeys(row.group for row in rows))
        lease = Lease(self._next_lease, consumer, rows, expires, groups)
        self._next_lease += 1
        self._leases[lease.lease_id] = lease
        queue.expiries.set(lease.lease_id, expires)
        self._no_end_before = min(self._no_end_before, expires)
        for row_id in row_ids:
            queue.leased[row_id] = lease.lease_id
        return lease

    def renew(self, lease: Lease, expires: float) -> None:
        self._held(lease)
        lease.expires = expires
        expiries = self._queue(lease.consumer).expiries
        if expires < expiries[lease.lease_id]:
            expiries.set(lease.lease_id, expires)
            self._no_end_before = min(self._no_end_before, expires)

    def ack(self, lease: Lease) -> None:
        """`consumer` is done with these rows. Rows that nobody else needs leave the table."""
        queue = self._end(lease)
        self._settled_leases.pop(lease.lease_id, None)
        for row in lease.rows:
            row_id = row.row_id
            if queue.leased.pop(row_id, None) is None:
                continue
            queue.acked[row_id] = None
            self._unacked[row_id] -= 1
            if not self._unacked[row_id]:
                self._forget(row)

    def give_back(self, lease: Lease) -> None:
        """End a lease without ack: its rows are ready again."""
        queue = self._end(lease)
        back = [row for row in lease.rows if queue.leased.pop(row.row_id, None) is not None]
        queue.ready.give_back(back)
        if lease.lease_id in self._settled_leases:
            del self._settled_leases[lease.lease_id]
            for key in lease.groups:
                self._settled.pop(key, None)
        if back:
            self._note_filled(lease.consumer)

    def held(self, consumer: str) -> list[Lease]:
        """Its leases, in the order in which they were granted."""
        return [lease for lease in self._leases.values() if lease.consumer == consumer]

    def leases(self) -> list[Lease]:
        """Those of all consumers, in the order in which they were granted."""
        return [*self._leases.values()]

    def expire(self, now: float) -> list[Lease]:
        """Take back what was leased until `now` or earlier."""
        if now < self._no_end_before:
            return []
        expired = []
        for queue in self._queues.values():
            while (lease := queue.first_to_end(self._leases)) is not None and lease.expires <= now:
                queue.expiries.discard(lease.lease_id)
                expired.append(lease)
        firsts = (queue.expiries.first() for queue in self._queues.values())
        self._no_end_before = min((first.priority for first in firsts if first is not None), default=math.inf)
        expired.sort(key=lambda lease: lease.lease_id)
        for lease in expired:
            self.give_back(lease)
        return expired

    def next_expiry(self, consumer: str) -> float | None:
        """When the first of this consumer's leases ends, unless renewed."""
        first = self._queue(consumer).first_to_end(self._leases)
        return None if first is None else first.expires

    def remove(self, key: GroupKey) -> None:
        """Take a group out, whoever holds its rows; a lease keeps its other rows."""
        held: dict[int, None] = {}
        ids = tuple(self._group(key))
        for queue in self._queues.values():
            queue.forget_group(key)
            for row_id in ids:
                if (lease_id := queue.withdraw(row_id)) is not None:
                    held[lease_id] = None
        for lease_id in held:
            lease = self._leases[lease_id]
            lease.rows = [row for row in lease.rows if row.group != key]
        for row_id in ids:
            self._forget(self._rows[row_id])

    def settle(self, leases: Sequence[Lease]) -> None:
        """See `ExperienceTable.settle`."""
        for lease in leases:
            self._held(lease)
        for lease in leases:
            self._settled.update(dict.fromkeys(lease.groups))
            self._settled_leases[lease.lease_id] = None

    def lose(self, is_lost: Callable[[Any], bool], computing: Collection[str]) -> Lost:
        """See `ExperienceTable.lose`. `is_lost`: of a column's value. `computing`: consumers whose leases end."""
        columns = self._lost_columns(is_lost)
        settled = {row.group: None for row_id in columns if (row := self._rows[row_id]).group in self._settled}
        columns = {row_id: names for row_id, names in columns.items() if self._rows[row_id].group not in settled}
        left = [key for key in settled if self._retire(key)]
        groups: dict[GroupKey, dict[str, None]] = {}
        for row_id, names in columns.items():
            groups.setdefault(self._rows[row_id].group, {}).update(names)
        ended: dict[int, None] = {}
        for queue in self._queues.values():
            if queue.consumer.name in computing:
                ended.update(dict.fromkeys(queue.leased.values()))
                continue
            for row_id, lease_id in queue.leased.items():
                lost = groups.get(self._rows[row_id].group, {}) if queue.of_groups else columns.get(row_id, {})
                if not queue.consumer.reads.isdisjoint(lost):
                    ended[lease_id] = None
        leases = [self._leases[lease_id] for lease_id in sorted(ended)]
        for lease in leases:
            self.give_back(lease)
        for row_id, names in columns.items():
            for name in names:
                del self._rows[row_id].columns[name]
        for queue in self._queues.values():
            self._reopen(queue, columns)
        return Lost(len(columns), leases, left)

    def _retire(self, key: GroupKey) -> bool:
        """Only who settled them has the group's rows from now on: others are done with them. True if it has left."""
        rows = [self._rows[row_id] for row_id in self._groups[key]]
        for queue in self._queues.values():
            queue.forget_group(key)
            for row_id in (row.row_id for row in rows):
                if row_id in queue.acked or queue.leased.get(row_id) in self._settled_leases:
                    continue
                if (lease_id := queue.withdraw(row_id)) is not None:
                    lease = self._leases[lease_id]
                    lease.rows = [row for row in lease.rows if row.row_id != row_id]
                queue.acked[row_id] = None
                self._unacked[row_id] -= 1
        for row in rows:
            if not self._unacked[row.row_id]:
                self._forget(row)
        return key not in self._groups

    def _lost_columns(self, is_lost: Callable[[Any], bool]) -> dict[RowId, dict[str, None]]:
        """By row. Who lost one column of a row, or of a group that it writes whole, writes all of its columns again."""
        found: dict[RowId, dict[str, None]] = {}
        writers = [queue.consumer for queue in self._queues.values() if queue.consumer.writes]
        for row in self._rows.values():
            lost = {name for name, value in row.columns.items() if is_lost(value)}
            for writer in writers:
                if writer.writes.isdisjoint(lost):
                    continue
                for row_id in self._groups[row.group] if writer.unit == "group" else (row.row_id,):
                    there = self._rows[row_id].columns
                    wrote = {name: None for name in sorted(writer.writes) if name in there}
                    found.setdefault(row_id, {}).update(wrote)
        return found

    def _reopen(self, queue: ConsumerQueue, columns: Mapping[RowId, Mapping[str, None]]) -> None:
        """Have the queue's rows where they belong without these columns."""
        reads, writes = queue.consumer.reads, queue.consumer.writes
        rows: dict[GroupKey, list[Row]] = {}
        for row_id, lost in columns.items():
            if not writes.isdisjoint(lost) and row_id in queue.acked:
                del queue.acked[row_id]
                self._unacked[row_id] += 1
            if not (reads | writes).isdisjoint(lost):
                rows.setdefault(self._rows[row_id].group, []).append(self._rows[row_id])
        for key, some in rows.items():
            queue.enter(key, [self._rows[row_id] for row_id in self._groups[key]] if queue.of_groups else some)

    def _note_filled(self, consumer: str) -> None:
        self._filled[consumer] = None

    def _forget(self, row: Row) -> None:
        del self._rows[row.row_id]
        del self._unacked[row.row_id]
        for queue in self._queues.values():
            queue.acked.pop(row.row_id, None)
        siblings = self._groups[row.group]
        del siblings[row.row_id]
        if not siblings:
            del self._groups[row.group]
            self._settled.pop(row.group, None)

    def _end(self, lease: Lease) -> ConsumerQueue:
        self._held(lease)
        del self._leases[lease.lease_id]
        queue = self._queue(lease.consumer)
        queue.expiries.discard(lease.lease_id)
        return queue

    def _held(self, lease: Lease) -> None:
        if self._leases.get(lease.lease_id) is not lease:
            raise StaleLease(f"lease {lease.lease_id} of {lease.consumer} has ended; its rows went back to the table")

    def _queue(self, consumer: str) -> ConsumerQueue:
        if consumer not in self._queues:
            raise TableError(f"no consumer {consumer!r}; the table has {', '.join(self._queues)}")
        return self._queues[consumer]

    def _group(self, key: GroupKey) -> Collection[RowId]:
        if key not in self._groups:
            raise TableError(f"group {key} is not in the table (any more)")
        return self._groups[key]
