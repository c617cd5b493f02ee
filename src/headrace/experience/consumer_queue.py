"""One consumer's view of the table's rows: those that lack a column, those that are ready, leased or acked.

Invariant: a row of the table that the consumer has still to see is in one of the four. Each event costs O(log n) for
each row that it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.experience.keyed_heap import KeyedHeap
from headrace.experience.leases import Consumer, Lease, Row, RowId
from headrace.experience.ready_rows import ReadyRows
from headrace.experience.sample import GroupKey


class ConsumerQueue:
    def __init__(
        self,
        consumer: Consumer,
        rows: Mapping[RowId, Row],
        groups: Mapping[GroupKey, Mapping[RowId, None]],
        filled: Callable[[str], None],
    ) -> None:
        """`rows`, `groups`: the table's, as they change. `filled`: told of the consumer when rows become ready for
        it."""
        self.consumer = consumer
        self.ready = ReadyRows(groups, by_batch="batch" in consumer.reads)
        self.missing: dict[RowId, int] = {}
        """Rows not ready yet: how many columns (unit `row`) are still missing."""
        self.leased: dict[RowId, int] = {}
        """Row to lease."""
        self.acked: dict[RowId, None] = {}
        """Rows of the table that it is done with."""
        self.expiries: KeyedHeap[int] = KeyedHeap()
        """Leases by when they end, or earlier: a lease that is renewed stays where it is until it comes first."""
        self._group_missing: dict[GroupKey, int] = {}
        """Unit `group`: how many rows of the group are not complete yet."""
        self._rows = rows
        self._groups = groups
        self._filled = filled

    @property
    def of_groups(self) -> bool:
        return self.consumer.unit == "group"

    def enter(self, key: GroupKey, rows: Sequence[Row]) -> None:
        """Have these rows of a group, all of it for unit `group`, wait for the columns that they lack. Those that are
        leased, or acked, stay so."""
        reads, waiting = self.consumer.reads, []
        for row in rows:
            if row.row_id in self.acked or row.row_id in self.leased:
                continue
            if row.row_id in self.ready:
                self.ready.take(row.row_id)
            self.missing[row.row_id] = len(reads)
            waiting.append(row)
        if self.of_groups and waiting:
            self._group_missing[key] = len(waiting)
        for row in waiting:
            self.fill(row, sum(map(row.columns.__contains__, reads)))

    def fill(self, row: Row, columns: int) -> None:
        """So many more of the columns that it lacked are there."""
        left = self.missing[row.row_id] - columns
        if left:
            self.missing[row.row_id] = left
            return
        del self.missing[row.row_id]
        if not self.of_groups:
            self.ready.add(row)
            self._filled(self.consumer.name)
            return
        self._group_missing[row.group] -= 1
        if not self._group_missing[row.group]:
            del self._group_missing[row.group]
            for row_id in self._groups[row.group]:
                if row_id not in self.acked and row_id not in self.leased:
                    self.ready.add(self._rows[row_id])
            self._filled(self.consumer.name)

    def withdraw(self, row_id: RowId) -> int | None:
        """The row is neither waited for, ready nor leased any more. The lease that it was in."""
        self.missing.pop(row_id, None)
        if row_id in self.ready:
            self.ready.take(row_id)
        return self.leased.pop(row_id, None)

    def forget_group(self, key: GroupKey) -> None:
        """Nobody waits for it to be complete any more."""
        self._group_missing.pop(key, None)

    def first_to_end(self, leases: Mapping[int, Lease]) -> Lease | None:
        """Of its leases, the one that ends first. `leases`: those of all, by number."""
        while (first := self.expiries.first()) is not None:
            lease = leases[first.key]
            if lease.expires == first.priority:
                return lease
            self.expiries.set(lease.lease_id, lease.expires)
        return None
