"""The table: readiness by columns, leases with fencing, and space that is reserved before it is used."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from table_rows import new_row

from headrace.experience.index import TableIndex
from headrace.experience.leases import Consumer, NewRow, StaleLease, TableError
from headrace.experience.sample import GroupKey
from headrace.experience.samplers import token_budget, whole_groups
from headrace.experience.table import ExperienceTable
from headrace.runtime.inline import SystemClock
from headrace.runtime.protocol import WaitTimeout

FILTER = Consumer("filter", frozenset({"reward"}), unit="group")
ACTOR = Consumer("actor", frozenset({"tokens", "batch"}))


class ManualClock(SystemClock):
    """Time stands still until it is set; waits end by their event or, if told so, at once."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


def key(position: int) -> GroupKey:
    return GroupKey(0, position, 0)


def everything(ready: object) -> list[int]:
    return list(ready)  # type: ignore[call-overload]


def table(capacity: int = 4, lease_s: float = 10.0) -> tuple[ExperienceTable, ManualClock]:
    clock = ManualClock()
    return ExperienceTable([FILTER, ACTOR], capacity=capacity, lease_s=lease_s, clock=clock), clock


def rows(count: int, position: int = 0) -> list[NewRow]:
    return [new_row(key(position), {"tokens": [place] * 3, "reward": 1.0}) for place in range(count)]


def put(store: ExperienceTable, position: int, count: int = 2, nbytes: int = 0) -> list[int]:
    store.reserve(key(position))
    return store.put(key(position), rows(count, position), nbytes=nbytes)


def run(make: Callable[[], object]) -> None:
    async def main() -> None:
        await make()  # type: ignore[misc]

    asyncio.run(main())


def test_a_row_is_ready_once_every_column_that_is_read_is_there() -> None:
    store, _ = table()
    ids = put(store, 0)
    assert store.try_lease("actor", everything) is None
    store.write(ids[:1], "batch", [0])
    lease = store.try_lease("actor", everything)
    assert lease is not None
    assert [row.row_id for row in lease.rows] == ids[:1]


def test_a_group_consumer_leases_whole_groups_oldest_first() -> None:
    store, _ = table()
    first, second = put(store, 0, 3), put(store, 1, 2)
    for ids in (first, second):
        lease = store.try_lease("filter", whole_groups)
        assert lease is not None
        assert [row.row_id for row in lease.rows] == ids


def test_a_row_leaves_when_every_consumer_has_acked_it() -> None:
    store, _ = table()
    ids = put(store, 0)
    store.write(ids, "batch", [0, 0])
    for consumer in ("filter", "actor"):
        assert store.rows == 2
        lease = store.try_lease(consumer, everything)
        assert lease is not None
        store.ack(lease)
    assert store.rows == 0
    assert store.groups == 0


def test_an_expired_lease_gives_its_rows_back_and_can_do_nothing_more() -> None:
    store, clock = table(lease_s=10.0)
    ids = put(store, 0)
    late = store.try_lease("filter", everything)
    assert late is not None
    clock.time = 9.9
    assert store.try_lease("filter", everything) is None
    clock.time = 10.0
    again = store.try_lease("filter", everything)
    assert again is not None
    assert [row.row_id for row in again.rows] == ids
    with pytest.raises(StaleLease):
        store.ack(late)
    with pytest.raises(StaleLease):
        store.write(ids, "keep", [True, True], late)
    store.ack(again)


def test_renewal_and_hold_keep_a_lease() -> None:
    store, clock = table(lease_s=10.0)
    put(store, 0)
    lease = store.try_lease("filter", everything)
    assert lease is not None
    clock.time = 9.0
    store.renew(lease)
    clock.time = 18.0
    store.hold(lease)
    clock.time = 1e9
    store.ack(lease)


def test_a_removed_group_takes_its_rows_out_of_a_lease() -> None:
    store, _ = table()
    put(store, 0)
    kept = put(store, 1)
    lease = store.try_lease("filter", everything)
    assert lease is not None
    store.remove(key(0))
    assert [row.row_id for row in lease.rows] == kept
    store.ack(lease)
    assert store.groups == 1


def test_places_are_reserved_and_counted() -> None:
    store, _ = table(capacity=1)
    store.reserve(key(0))
    with pytest.raises(TableError, match="no place for group 0/1#0: 1 groups"):
        store.reserve(key(1))
    with pytest.raises(TableError, match="no place reserved"):
        store.put(key(1), rows(1, 1))
    store.put(key(0), rows(1))
    assert not store.has_place
    store.remove(key(0))
    assert store.has_place


def test_bytes_are_reserved_then_measured_and_leave_with_the_group() -> None:
    clock = ManualClock()
    store = ExperienceTable([FILTER, ACTOR], capacity=4, capacity_bytes=250, group_bytes=100, lease_s=10.0, clock=clock)
    for position in (0, 1):
        assert store.has_bytes
        store.reserve(key(position))
    assert (store.nbytes, store.has_bytes) == (200, False)
    ids = store.put(key(0), rows(2), nbytes=50)
    assert (store.nbytes, store.has_bytes) == (150, True)
    store.write(ids, "batch", [0, 0])
    for consumer in ("filter", "actor"):
        lease = store.try_lease(consumer, everything)
        assert lease is not None
        assert store.nbytes == 150
        store.ack(lease)
    assert store.nbytes == 100
    store.cancel(key(1))
    assert store.nbytes == 0


def test_bytes_of_a_group_stay_until_its_last_row_has_left() -> None:
    store, _ = table()
    first, second = put(store, 0, nbytes=70)
    store.write([first, second], "batch", [0, 0])
    for consumer, count in (("filter", 2), ("actor", 1)):
        lease = store.try_lease(consumer, lambda ready, count=count: list(ready)[:count])
        assert lease is not None
        store.ack(lease)
    assert (store.rows, store.nbytes) == (1, 70)
    store.remove(key(0))
    assert store.nbytes == 0


def test_what_is_reserved_or_put_never_waits_for_bytes() -> None:
    """The schedule alone decides who starts without any; a group that is larger than it may be is put as well."""
    store = ExperienceTable(
        [FILTER, ACTOR], capacity=4, capacity_bytes=10, group_bytes=100, lease_s=10.0, clock=ManualClock()
    )
    assert not store.has_bytes
    put(store, 0, nbytes=300)
    store.reserve(key(1), beyond_capacity=True)
    assert store.nbytes == 400


def test_a_column_is_written_once() -> None:
    store, _ = table()
    ids = put(store, 0)
    store.write(ids, "batch", [0, 0])
    with pytest.raises(TableError, match="has column 'batch' already"):
        store.write(ids, "batch", [1, 1])


def test_a_waiter_is_woken_by_the_column_that_it_waits_for() -> None:
    async def main() -> None:
        store = ExperienceTable([FILTER, ACTOR], capacity=4, lease_s=10.0, clock=SystemClock())
        waiting = asyncio.create_task(store.lease("actor", everything, seconds=5, what=lambda: "rows"))
        await asyncio.sleep(0)
        ids = put(store, 0)
        await asyncio.sleep(0)
        assert not waiting.done()
        store.write_group(key(0), "batch", 0)
        lease = await asyncio.wait_for(waiting, 1)
        assert lease is not None
        assert [row.row_id for row in lease.rows] == ids

    asyncio.run(main())


def test_a_wait_ends_at_its_deadline_and_says_what_for() -> None:
    async def main() -> None:
        store = ExperienceTable([FILTER, ACTOR], capacity=4, lease_s=10.0, clock=SystemClock())
        with pytest.raises(WaitTimeout, match=r"waited 0\.0 s for rows of batch 7"):
            await store.lease("actor", everything, seconds=0.01, what=lambda: "rows of batch 7")

    asyncio.run(main())


def test_a_waiter_takes_over_when_anothers_lease_expires() -> None:
    async def main() -> None:
        store = ExperienceTable([FILTER, ACTOR], capacity=4, lease_s=0.05, clock=SystemClock())
        put(store, 0)
        assert await store.lease("filter", everything, seconds=1, what=lambda: "groups") is not None
        assert await store.lease("filter", everything, seconds=1, what=lambda: "groups") is not None

    asyncio.run(main())


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 60))
def test_token_budget_fills_up_to_the_budget_and_always_makes_progress(lengths: list[int], budget: int) -> None:
    index = TableIndex([Consumer("actor", frozenset({"tokens"}))])
    index.put(key(0), [new_row(key(0), {"tokens": range(length)}) for length in lengths])
    sampler = token_budget(budget, lambda row: len(row.columns["tokens"]))
    seen: list[int] = []
    while index.ready("actor"):
        lease = index.lease("actor", sampler(index.ready("actor")), expires=1.0)
        sizes = [len(row.columns["tokens"]) for row in lease.rows]
        assert sum(sizes) <= budget or len(sizes) == 1
        seen += [row.row_id for row in lease.rows]
        index.ack(lease)
    assert sorted(seen) == list(range(len(lengths)))


class TableMachine(RuleBasedStateMachine):
    """Against a plain model: for each row and consumer one of waiting, ready, leased, acked."""

    def __init__(self) -> None:
        super().__init__()
        self.index = TableIndex([FILTER, ACTOR])
        self.time = 0.0
        self.groups: dict[GroupKey, list[int]] = {}
        self.batched: set[int] = set()
        self.acked: dict[str, set[int]] = {"filter": set(), "actor": set()}
        self.leases: list = []
        self.count = 0

    @rule(size=st.integers(1, 3))
    def put(self, size: int) -> None:
        group = key(self.count)
        self.count += 1
        self.groups[group] = self.index.put(group, rows(size, group.position))

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        open_rows = [r for ids in self.groups.values() for r in ids if r not in self.batched]
        if open_rows:
            row = data.draw(st.sampled_from(open_rows))
            self.index.write([row], "batch", [0])
            self.batched.add(row)

    @rule(consumer=st.sampled_from(["filter", "actor"]), term=st.floats(0.1, 5))
    def lease(self, consumer: str, term: float) -> None:
        ready = self.index.ready(consumer)
        chosen = whole_groups(ready) if consumer == "filter" else list(ready)[:2]
        if chosen:
            self.leases.append(self.index.lease(consumer, chosen, self.time + term))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        self.leases.remove(lease)
        ids = [row.row_id for row in lease.rows]
        if lease.expires <= self.time:
            with pytest.raises(StaleLease):
                self.index.ack(lease)
        else:
            self.index.ack(lease)
            assert not self.acked[lease.consumer] & set(ids), "acked twice"
            self.acked[lease.consumer] |= set(ids)
            self.forget_done()

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(sorted(self.groups)))
        self.index.remove(group)
        del self.groups[group]

    @rule(step=st.floats(0.1, 3))
    def wait(self, step: float) -> None:
        self.time += step
        self.index.expire(self.time)

    def forget_done(self) -> None:
        done = self.acked["filter"] & self.acked["actor"]
        for group, ids in list(self.groups.items()):
            self.groups[group] = [r for r in ids if r not in done]
            if not self.groups[group]:
                del self.groups[group]

    @invariant()
    def each_row_is_in_one_state(self) -> None:
        present = {r for ids in self.groups.values() for r in ids}
        assert self.index.rows == len(present)
        for consumer in ("filter", "actor"):
            ready = set(self.index.ready(consumer))
            leased = {
                row.row_id
                for lease in self.leases
                if lease.consumer == consumer and lease.expires > self.time
                for row in lease.rows
            }
            assert not ready & leased
            readable = present if consumer == "filter" else present & self.batched
            assert ready | leased == readable - self.acked[consumer]


TableMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTableMachine = TableMachine.TestCase
