"""Columns that are lost with their keeper are computed again: as a plain model has it, which looks at every row."""

from __future__ import annotations

import math
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from table_rows import new_row

from headrace.experience.index import TableIndex
from headrace.experience.leases import Consumer, Lease, StaleLease, TableError
from headrace.experience.sample import GroupKey
from headrace.experience.samplers import whole_groups
from headrace.experience.table import ExperienceTable
from headrace.runtime.inline import SystemClock
from headrace.runtime.refs import InlineRefs, Ref, RefLost

HERE, THERE = "", "functions/0"
CONSUMERS = (
    Consumer("stage", frozenset({"tokens"}), "row", frozenset({"x", "y"})),
    Consumer("of groups", frozenset({"tokens", "x"}), "group", frozenset({"z"})),
    Consumer("advantages", frozenset({"z", "y", "keep"}), "group", frozenset({"advantages"})),
    Consumer("watcher", frozenset({"x"})),
    Consumer("critic", frozenset({"tokens", "advantages"})),
    Consumer("actor", frozenset({"tokens", "advantages", "keep"})),
)
TRAIN = ("actor", "critic")
COMPUTING = ("stage", "of groups", "advantages")
BY_NAME = {consumer.name: consumer for consumer in CONSUMERS}


class Lossy(RuleBasedStateMachine):
    """Who writes does so at its lease's end; values are the names of their keepers."""

    def __init__(self) -> None:
        super().__init__()
        self.index = TableIndex(CONSUMERS)
        self.numbers = count()
        self.columns: dict[int, dict[str, str]] = {}
        self.groups: dict[int, GroupKey] = {}
        self.acked: set[tuple[str, int]] = set()
        self.held: list[Lease] = []
        self.settled: set[GroupKey] = set()
        self.sure: list[Lease] = []
        """Of these, those that are settled."""

    def group_of(self, row: int) -> list[int]:
        return [other for other in self.groups if self.groups[other] == self.groups[row]]

    def is_complete(self, consumer: Consumer, row: int) -> bool:
        rows = self.group_of(row) if consumer.unit == "group" else [row]
        return all(consumer.reads <= self.columns[each].keys() for each in rows)

    def ready(self, name: str) -> set[int]:
        leased = {row.row_id for lease in self.held if lease.consumer == name for row in lease.rows}
        done = {row for who, row in self.acked if who == name} | leased
        return {row for row in self.columns if row not in done and self.is_complete(BY_NAME[name], row)}

    def forget(self, row: int) -> None:
        del self.columns[row], self.groups[row]
        self.acked = {(who, each) for who, each in self.acked if each != row}

    def forget_what_all_have_acked(self) -> None:
        for row in [row for row in self.columns if all((name, row) in self.acked for name in BY_NAME)]:
            self.forget(row)
        self.settled &= set(self.groups.values())

    @initialize()
    def begin(self) -> None:
        self.put(2, keep=True)

    @rule(rows=st.integers(1, 3), keep=st.booleans())
    def put(self, rows: int, keep: bool) -> None:
        key = GroupKey(0, next(self.numbers), 0)
        columns = {"tokens": HERE, **({"keep": HERE} if keep else {})}
        for row in self.index.put(key, [new_row(key, dict(columns), length=1) for _ in range(rows)]):
            self.columns[row], self.groups[row] = dict(columns), key

    @rule(data=st.data(), name=st.sampled_from(sorted(BY_NAME)))
    def lease(self, data: st.DataObject, name: str) -> None:
        ready = self.index.ready(name)
        if not ready:
            return
        chosen = [data.draw(st.sampled_from(sorted(ready)))]
        if BY_NAME[name].unit == "group":
            chosen = whole_groups(ready)
        elif name in TRAIN:  # a whole batch, which is of one group here
            chosen = self.group_of(chosen[0])
            if not set(chosen) <= set(ready):
                return
        self.held.append(self.index.lease(name, chosen, math.inf))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), keeper=st.sampled_from((HERE, THERE, THERE)))
    def end(self, data: st.DataObject, keeper: str) -> None:
        """Write, and ack; who trains has settled before."""
        lease = self.held[data.draw(st.integers(0, len(self.held) - 1))]
        if lease.consumer in TRAIN and lease not in self.sure:
            return
        self.write_and_ack(lease, keeper)

    def write_and_ack(self, lease: Lease, keeper: str) -> None:
        self.held.remove(lease)
        ids = [row.row_id for row in lease.rows]
        for column in sorted(BY_NAME[lease.consumer].writes):
            self.index.write(ids, column, [keeper] * len(ids), lease)
            for row in ids:
                self.columns[row][column] = keeper
        self.index.ack(lease)
        self.sure = [one for one in self.sure if one is not lease]
        self.acked |= {(lease.consumer, row) for row in ids}
        self.forget_what_all_have_acked()

    @rule()
    def settle(self) -> None:
        """All groups that both train on."""
        for actor in [lease for lease in self.held if lease.consumer == "actor" and lease not in self.sure]:
            mine = [lease for lease in self.held if lease.consumer == "critic" and lease.groups == actor.groups]
            if mine:
                self.index.settle([actor, *mine])
                self.sure += [actor, *mine]
                self.settled |= set(actor.groups)

    @rule(keeper=st.sampled_from((THERE, HERE)), trains=st.booleans())
    def work(self, keeper: str, trains: bool) -> None:
        """All that can be computed is; then both lease a group to train on."""
        for row in self.columns:
            if "keep" not in self.columns[row]:
                self.index.write([row], "keep", [HERE])
                self.columns[row]["keep"] = HERE
        for name in COMPUTING:
            while ready := self.index.ready(name):
                self.held.append(self.index.lease(name, whole_groups(ready), math.inf))
                self.write_and_ack(self.held[-1], keeper)
        if trains and all(ready := [self.index.ready(name) for name in TRAIN]):
            chosen = self.group_of(whole_groups(ready[0])[0])
            if all(set(chosen) <= set(one) for one in ready):
                self.held += [self.index.lease(name, chosen, math.inf) for name in TRAIN]
                self.settle()

    @precondition(lambda self: self.sure)
    @rule()
    def go_back(self) -> None:
        """What is settled is given back, and its rows come as they were put."""
        for lease in self.sure:
            self.held.remove(lease)
            self.index.give_back(lease)
        for key in {key: None for lease in self.sure for key in lease.groups}:
            rows = [row for row in self.groups if self.groups[row] == key]
            keep = any("keep" in self.columns[row] for row in rows)
            for row in rows:
                self.forget(row)
            if self.index.has_group(key):
                self.index.remove(key)
            self.put(len(rows) or 1, keep)
        self.sure = []
        self.settled &= set(self.groups.values())

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        lease = self.held[data.draw(st.integers(0, len(self.held) - 1))]
        if lease not in self.sure:
            self.held.remove(lease)
            self.index.give_back(lease)

    @rule(lost=st.sampled_from((THERE, THERE, HERE)))
    def lose(self, lost: str) -> None:
        columns: dict[int, set[str]] = {}
        for row in self.columns:
            for writer in CONSUMERS:
                if any(self.columns[row].get(column) == lost for column in writer.writes):
                    for each in self.group_of(row) if writer.unit == "group" else [row]:
                        columns.setdefault(each, set()).update(writer.writes & self.columns[each].keys())
        trained = {self.groups[row] for row in columns} & self.settled
        sure = {(lease.consumer, row.row_id) for lease in self.sure for row in lease.rows}
        for row in [row for row, key in self.groups.items() if key in trained]:
            self.acked |= {(name, row) for name in BY_NAME if (name, row) not in sure}
            columns.pop(row, None)
        before = set(self.groups.values())
        self.forget_what_all_have_acked()
        stale = []
        for lease in self.held:
            if lease in self.sure:
                continue
            rows = [row.row_id for row in lease.rows if row.group not in trained]
            if BY_NAME[lease.consumer].unit == "group":
                rows = [other for row in rows for other in self.group_of(row)]
            read = any(BY_NAME[lease.consumer].reads & columns.get(row, set()) for row in rows)
            if read or lease.consumer in COMPUTING:
                stale.append(lease)
        for row, names in columns.items():
            for name in names:
                del self.columns[row][name]
                self.acked -= {(writer.name, row) for writer in CONSUMERS if name in writer.writes}

        told = self.index.lose(lambda value: value == lost, COMPUTING)
        assert told.rows == len(columns)
        assert [lease.lease_id for lease in told.leases] == sorted(lease.lease_id for lease in stale)
        assert set(told.groups) == before - set(self.groups.values())
        self.held = [lease for lease in self.held if lease not in stale]
        for lease in stale:
            with pytest.raises(StaleLease):
                self.index.ack(lease)

    @invariant()
    def is_the_model(self) -> None:
        assert self.index.rows == len(self.columns)
        for name in BY_NAME:
            assert set(self.index.ready(name)) == self.ready(name), name
        for row, columns in self.columns.items():
            assert self.index.row(row).columns == columns
        for lease in self.held:
            self.index.renew(lease, math.inf)

    def teardown(self) -> None:
        """Nothing is stuck: once everybody works on, every row leaves."""
        for row in self.columns:
            if "keep" not in self.columns[row]:
                self.index.write([row], "keep", [HERE])
        for lease in self.held:
            (self.index.ack if lease in self.sure else self.index.give_back)(lease)
        while self.index.rows:
            name = next((name for name in BY_NAME if self.index.ready(name)), None)
            assert name is not None, "rows are left that nobody can lease"
            lease = self.index.lease(name, whole_groups(self.index.ready(name)), math.inf)
            for column in sorted(BY_NAME[name].writes):
                self.index.write([row.row_id for row in lease.rows], column, [HERE] * len(lease.rows), lease)
            self.index.ack(lease)


TestLossy = Lossy.TestCase
TestLossy.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


KEY = GroupKey(0, 0, 0)


class Machine:
    """A table of one group of two rows whose `x` a worker keeps."""

    def __init__(self) -> None:
        stage = Consumer("stage", frozenset({"tokens"}), "row", frozenset({"x"}))
        self.refs, self.clock = InlineRefs(), SystemClock()
        consumers = [stage, Consumer("actor", frozenset({"x"})), Consumer("slow", frozenset({"x"}))]
        self.table = ExperienceTable(consumers, capacity=4, lease_s=10.0, clock=self.clock, refs=self.refs)
        self.table.reserve(KEY)
        self.table.put(KEY, [new_row(KEY, {"tokens": [1]}), new_row(KEY, {"tokens": [2]})])

    def lease(self, name: str) -> Lease:
        found = self.table.try_lease(name, list)
        assert found is not None
        return found

    def write(self, keeper: str = THERE) -> None:
        lease = self.lease("stage")
        refs = {row.row_id: Ref(keeper, row.row_id, ("x",)) for row in lease.rows}
        self.table.fill(lease, "x", refs)
        self.table.ack(lease)


def test_who_holds_what_is_lost_holds_it_no_more_and_has_it_again_once_it_is_computed() -> None:
    one = Machine()
    one.write()
    lease = one.lease("actor")
    one.table.hold(lease)
    assert one.table.lose(THERE, ["stage"]) == 2
    with pytest.raises(StaleLease):
        one.table.hold(lease)
    assert one.table.try_lease("actor", list) is None
    one.write()
    assert len(one.lease("actor").rows) == 2


def test_what_a_lost_worker_answers_late_is_let_go() -> None:
    one = Machine()
    lease = one.lease("stage")
    one.table.hold(lease)
    assert one.table.lose(THERE, ["stage"]) == 0
    with pytest.raises(StaleLease):
        one.table.fill(lease, "x", {row.row_id: one.refs.put({"x": 1.0}) for row in lease.rows})
    assert len(one.refs) == 0
    one.write()


def test_a_settled_batch_is_trained_whatever_is_lost() -> None:
    one = Machine()
    one.write()
    lease = one.lease("actor")
    one.table.settle(lease)
    assert one.table.lose(THERE, ["stage"]) == 0
    one.table.ack(lease)
    assert one.table.rows == one.table.groups == one.table.nbytes == 0, "nobody waits for who is slow"


def test_a_batch_that_is_given_back_is_settled_no_more() -> None:
    one = Machine()
    one.write()
    lease = one.lease("actor")
    one.table.settle(lease)
    one.table.give_back(lease)
    assert one.table.lose(THERE, ["stage"]) == 2
    one.write()
    assert len(one.lease("actor").rows) == 2


def test_leases_are_settled_together_or_not_at_all() -> None:
    one = Machine()
    one.write()
    first, other = one.lease("actor"), one.lease("slow")
    one.table.give_back(other)
    with pytest.raises(StaleLease):
        one.table.settle(first, other)
    assert one.table.lose(THERE, ["stage"]) == 2


def test_what_another_keeps_and_what_nobody_writes_stays() -> None:
    one = Machine()
    one.write("rollout/0")
    assert one.table.lose(THERE, ["stage"]) == 0
    assert one.table.lose("rollout/0") == 2
    lease = one.lease("stage")
    kept: dict[str, Any] = lease.rows[0].columns
    assert set(kept) == {"tokens"}
    with pytest.raises(TableError, match="is not ready"):
        one.table._index.lease("actor", [lease.rows[0].row_id], 1.0)
    with pytest.raises(RefLost):
        one.refs.get(Ref(THERE, 0, ("x",)))
