"""The experience table: rows of samples, columns filled by stages, leases for consumers.

A waiter is woken by what it waits for alone, and no such event is lost: a wait depends on the consumer's ready rows, on
when its leases end, and on what its sampler and `until` look at beside. Ready rows grow only where `TableIndex` notes
it, and whoever was noted is woken before the method returns; `renew`, which may have a held lease end after all, wakes
those who wait beside its holder; whoever changes anything else calls `wake` or `wake_all`. (A lease that is granted
meanwhile wakes nobody: its rows were declined, and a sampler that chooses nothing chooses nothing of fewer rows.)

A place, and the bytes of the largest group, are reserved when a group is admitted, so that `put` of an admitted group
never waits; then they are replaced by what the group takes.

The table refuses nothing for its bytes: `has_bytes` is told to the schedule, which starts what the batch at hand needs
even so. Hence `nbytes` <= max(`capacity_bytes`, prompts_per_batch * `group_bytes`), as is proved in
`experience/schedule.py`, if no group is larger than `group_bytes`. On top come what a restore brings back, all groups
since the commit, and rows of a trained group that a consumer has not acked yet.

The table owns the refs that are in its columns. They are freed once the group has left the table, no lease that was
granted on it goes on, and nobody keeps it (`keep_refs`): who computes with a row that was dropped meanwhile finds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.experience.columns import FinishedGroup
from headrace.experience.index import Sampler, TableIndex
from headrace.experience.leases import Consumer, Lease, NewRow, Row, RowId, StaleLease, TableError
from headrace.experience.records.restored_refs import RestoredRefs
from headrace.experience.sample import GroupKey
from headrace.experience.shared_refs import SharedRefs
from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.runtime.refs import InlineRefs, Ref, Refs
from headrace.runtime.signal import Signal

__all__ = ["Consumer", "ExperienceTable", "Lease", "Row", "RowId", "TableError"]


class ExperienceTable:
    """Rows in this process. All methods are called from one event loop."""

    def __init__(
        self,
        consumers: Iterable[Consumer],
        *,
        capacity: int,
        capacity_bytes: float = math.inf,
        group_bytes: int = 0,
        lease_s: float,
        clock: Clock,
        refs: Refs | None = None,
    ) -> None:
        """`capacity`: most groups reserved or held. `capacity_bytes`: beyond which only what the batch at hand needs is
        to start. `group_bytes`: of the largest group, reserved for each until it is put. `lease_s`: a lease that is not
        renewed for so long ends. `refs`: where columns are kept; in this process unless given."""
        consumers = list(consumers)
        self._index = TableIndex(consumers)
        self._signals = {consumer.name: Signal() for consumer in consumers}
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._group_bytes = group_bytes
        self._reserved: dict[GroupKey, None] = {}
        self._bytes: dict[GroupKey, int] = {}
        """Of the groups that are held."""
        self._held_bytes = 0
        self._finished: dict[GroupKey, FinishedGroup] = {}
        self._lease_s = lease_s
        self._clock = clock
        self.refs: Refs = InlineRefs() if refs is None else refs
        self._shared = SharedRefs(self.refs)

    @property
    def rows(self) -> int:
        return self._index.rows

    @property
    def groups(self) -> int:
        return self._index.groups

    @property
    def nbytes(self) -> int:
        """Bytes reserved and held."""
        return len(self._reserved) * self._group_bytes + self._held_bytes

    @property
    def has_place(self) -> bool:
        """For one group more."""
        return len(self._reserved) + self._index.groups < self._capacity

    @property
    def has_bytes(self) -> bool:
        """For one group more, were it the largest."""
        return self.nbytes + self._group_bytes <= self._capacity_bytes

    def reserve(self, key: GroupKey, *, beyond_capacity: bool = False) -> None:
        """Keep a place for a group, and its bytes, whether or not there are any left. Raises TableError if there is no
        place, unless `beyond_capacity`: a restore brings back all groups since the commit, and nothing starts until
        there is a place again."""
        if not (self.has_place or beyond_capacity):
            raise TableError(f"no place for group {key}: {self._capacity} groups are reserved or held")
        self._reserved[key] = None

    def cancel(self, key: GroupKey) -> None:
        """Give a reserved place back."""
        self._reserved.pop(key, None)

    def put(
        self,
        key: GroupKey,
        rows: Sequence[NewRow],
        *,
        group: FinishedGroup | None = None,
        nbytes: int = 0,
        seen_by: Collection[str] = (),
    ) -> list[RowId]:
        """Add all rows of a group at once, in the place that was reserved for it. `group`: what else there is of it,
        whose refs are the table's from now on. `nbytes`: that the group takes, with what will be written later.
        `seen_by`: consumers that are done with it."""
        if key not in self._reserved:
            raise TableError(f"group {key} has no place reserved")
        ids = self._index.put(key, rows, seen_by)
        self._shared.enter(key, () if group is None else group.refs)
        if group is not None:
            self._finished[key] = group
        del self._reserved[key]
        self._bytes[key] = nbytes
        self._held_bytes += nbytes
        self._wake_filled()
        return ids

    def reopen(self, key: GroupKey, rows: Sequence[NewRow], seen_by: Collection[str] = ()) -> None:
        """The group's rows as they were put: what was computed of them since is forgotten, its refs are freed, and all
        consumers find them new, but those that they were `seen_by`. Nobody may hold a lease on them."""
        self._index.remove(key)
        self._shared.keep(key, self._finished[key].refs)
        self._index.put(key, rows, seen_by)
        self._wake_filled()

    def group(self, key: GroupKey) -> FinishedGroup:
        """Of which rows are in the table. Raises KeyError."""
        return self._finished[key]

    def write(self, row_ids: Sequence[RowId], column: str, values: Sequence[Any], lease: Lease | None = None) -> None:
        """Fill one column. A ref among the values is the table's from now on. With `lease`, StaleLease if it has ended
        meanwhile."""
        self._expire()
        self._index.write(row_ids, column, values, lease)
        for row_id, value in zip(row_ids, values, strict=True):
            if isinstance(value, Ref):
                self._shared.add(self._index.row(row_id).group, [value])
        self._wake_filled()

    def fill(self, lease: Lease, column: str, values: Mapping[RowId, Any]) -> None:
        """Write what was computed of a lease's rows. Those of a group that was dropped meanwhile have left it, and what
        was computed of them is let go; so is all of it if the lease has ended meanwhile, which raises StaleLease."""
        there = {row.row_id: values[row.row_id] for row in lease.rows}
        for row_id, value in values.items():
            if isinstance(value, Ref) and row_id not in there:
                self.refs.free(value)
        try:
            self.write([*there], column, [*there.values()], lease)
        except StaleLease:
            for value in there.values():
                if isinstance(value, Ref):
                    self.refs.free(value)
            raise

    def write_group(self, key: GroupKey, column: str, value: Any) -> None:
        """The same value in a column of all rows of a group."""
        self._index.write_group(key, column, value)
        self._wake_filled()

    async def lease(
        self,
        consumer: str,
        sampler: Sampler,
        *,
        seconds: float,
        what: Callable[[], str],
        until: Callable[[], bool] = lambda: False,
    ) -> Lease | None:
        """Rows that `sampler` chooses among those ready for `consumer`, as soon as it chooses any.

        None once `until()` holds and nothing is chosen; it is looked at whenever the consumer is woken. Raises
        WaitTimeout, naming `what()`, after `seconds`.
        """
        end = self._clock.now() + seconds
        while True:
            if (lease := self.try_lease(consumer, sampler)) is not None:
                return lease
            if until():
                return None
            now = self._clock.now()
            if now >= end:
                raise WaitTimeout(what(), seconds)
            expiry = self._index.next_expiry(consumer)
            wake = end if expiry is None else min(end, expiry)
            try:
                await self._signals[consumer].wait(self._clock, max(wake - now, 0.0), "")
            except WaitTimeout:
                continue  # a lease has expired, or the time is up: look again

    def try_lease(self, consumer: str, sampler: Sampler) -> Lease | None:
        """The same without waiting."""
        self._expire()
        chosen = sampler(self._index.ready(consumer))
        if not chosen:
            return None
        lease = self._index.lease(consumer, chosen, self._clock.now() + self._lease_s)
        self._shared.hold(lease.groups)
        return lease

    def held(self, consumer: str) -> list[Lease]:
        """Its leases that have not ended, the oldest first."""
        return self._index.held(consumer)

    def renew(self, *leases: Lease) -> None:
        """Progress was made: hold them for another full term. Raises StaleLease if one has ended."""
        self._expire()
        for lease in leases:
            self._index.renew(lease, self._clock.now() + self._lease_s)
        for consumer in {lease.consumer: None for lease in leases}:
            self._signals[consumer].notify()

    def hold(self, *leases: Lease) -> None:
        """The rows are being computed with: the leases last until they are renewed or acked."""
        self._expire()
        for lease in leases:
            self._index.renew(lease, math.inf)

    def ack(self, *leases: Lease) -> None:
        """Done with these rows, all leases or (StaleLease) none."""
        self.renew(*leases)
        for lease in leases:
            self._index.ack(lease)
            for key in lease.groups:
                if not self._index.has_group(key):
                    self._left(key)
            self._shared.let_go(lease.groups)

    def settle(self, *leases: Lease) -> None:
        """All that the rows were leased for is read, and is about to be trained on: nothing of their groups is computed
        again from now on. All leases or (StaleLease) none. Who gives one back takes that back."""
        self._expire()
        self._index.settle(leases)

    def lose(self, keeper: str, computing: Collection[str] = ()) -> int:
        """`keeper` has ended: columns of rows that it kept, and that a consumer writes, are there no more. Whoever
        writes them leases those rows again, though it has acked them. Leases end in which they are read, and all
        leases of `computing`, the consumers whose work was on its hands. Gives the rows that are computed again.

        What was computed *from* such a column, and is kept elsewhere, stays: it was computed from the whole value, and
        if the function is one, from the very value that comes again. A group that is settled is
        as good as trained: nothing of it is computed again, and for stages that nobody waits for it is over.
        """
        self._expire()
        lost = self._index.lose(lambda value: isinstance(value, Ref) and value.keeper == keeper, computing)
        for lease in lost.leases:
            self._shared.let_go(lease.groups)
        for key in lost.groups:
            self._left(key)
        self._wake_filled()
        return lost.rows

    def lose_all(self) -> None:
        """All columns are there no more, whoever kept them: those that a consumer writes are computed again, see
        `lose`, and samples are in the journal still. Leases are ended."""
        self.end_leases()
        if isinstance(self.refs, RestoredRefs):
            self.refs.lose_all()
        lost = self._index.lose(lambda value: isinstance(value, Ref), ())
        for key in lost.groups:
            self._left(key)
        self._wake_filled()

    def give_back(self, lease: Lease) -> None:
        """Let others have these rows."""
        self._index.give_back(lease)
        self._shared.let_go(lease.groups)
        self._wake_filled()

    def end_leases(self) -> None:
        """Those of all consumers: they have ended, and what they computed is nobody's."""
        for lease in self._index.leases():
            self.give_back(lease)

    def remove(self, key: GroupKey) -> None:
        """Take a dropped group out, or give back its place if it was not put yet."""
        self.cancel(key)
        if self._index.has_group(key):
            self._index.remove(key)
            self._left(key)

    @contextmanager
    def keep_refs(self, keys: Iterable[GroupKey]) -> Iterator[None]:
        """Refs of groups that are in the table now, or leased, are not freed within."""
        kept = tuple(keys)
        self._shared.hold(kept)
        try:
            yield
        finally:
            self._shared.let_go(kept)

    def wake(self, consumer: str) -> None:
        """Have a waiting consumer's sampler look again: what it depends on beside the rows has changed."""
        self._signals[consumer].notify()

    def wake_all(self) -> None:
        """As `wake`, for every consumer."""
        for signal in self._signals.values():
            signal.notify()

    def _left(self, key: GroupKey) -> None:
        self._held_bytes -= self._bytes.pop(key, 0)
        self._shared.leave(key)
        self._finished.pop(key, None)

    def _expire(self) -> None:
        if expired := self._index.expire(self._clock.now()):
            for lease in expired:
                self._shared.let_go(lease.groups)
            self._wake_filled()

    def _wake_filled(self) -> None:
        for consumer in self._index.newly_ready():
            self._signals[consumer].notify()
