"""The table frees what nobody needs any more, and nothing before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from table_rows import new_row

from headrace.experience.columns import FinishedGroup
from headrace.experience.header import GroupHeader
from headrace.experience.leases import Consumer, StaleLease
from headrace.experience.sample import GroupKey
from headrace.experience.samplers import whole_groups
from headrace.experience.table import ExperienceTable, Lease
from headrace.runtime.inline import SystemClock
from headrace.runtime.refs import InlineRefs, Ref, RefLost

KEY, OTHER = GroupKey(0, 0, 0), GroupKey(0, 1, 0)
CONSUMERS = [Consumer("filter", frozenset({"tokens"}), "group"), Consumer("actor", frozenset({"tokens", "keep"}))]


def group(key: GroupKey, *refs: Ref) -> FinishedGroup:
    return FinishedGroup(GroupHeader(key, "p", 0, 0, ()), refs)


class Clock(SystemClock):
    time = 0.0

    def now(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def refs() -> InlineRefs:
    return InlineRefs()


@pytest.fixture
def table(clock: Clock, refs: InlineRefs) -> ExperienceTable:
    """With one group of two rows."""
    made = ExperienceTable(CONSUMERS, capacity=4, lease_s=10.0, clock=clock, refs=refs)
    made.reserve(KEY)
    of_samples = [refs.put({"tokens": [place] * 3}) for place in range(3)]  # the third failed: it is no row
    made.put(KEY, [new_row(KEY, {"tokens": ref}, length=3) for ref in of_samples[:2]], group=group(KEY, *of_samples))
    return made


def lease(table: ExperienceTable, consumer: str) -> Lease:
    found = table.try_lease(consumer, whole_groups)
    assert found is not None
    return found


def trained(table: ExperienceTable) -> None:
    table.ack(lease(table, "filter"))
    table.write_group(KEY, "keep", True)
    table.ack(lease(table, "actor"))


def test_refs_are_freed_with_the_last_ack(table: ExperienceTable, refs: InlineRefs) -> None:
    table.ack(lease(table, "filter"))
    table.write_group(KEY, "keep", True)
    last = lease(table, "actor")
    ids = [row.row_id for row in last.rows]
    table.write(ids, "values", [refs.put({"values": 0.0}) for _ in ids], last)
    assert len(refs) == 5
    table.ack(last)
    assert len(refs) == 0


def test_a_dropped_groups_refs_stay_for_who_computes_with_them(table: ExperienceTable, refs: InlineRefs) -> None:
    computing = lease(table, "filter")
    row = computing.rows[0]
    table.remove(KEY)
    assert refs.get(row.columns["tokens"]) == {"tokens": [0] * 3}
    table.ack(computing)
    assert len(refs) == 0
    with pytest.raises(RefLost):
        refs.get(row.columns["tokens"])


@pytest.mark.parametrize("end", [ExperienceTable.ack, ExperienceTable.give_back])
def test_what_is_given_back_holds_nothing(
    end: Callable[[ExperienceTable, Lease], None], table: ExperienceTable, refs: InlineRefs
) -> None:
    end(table, lease(table, "filter"))
    table.remove(KEY)
    assert len(refs) == 0


def test_a_lease_that_expired_holds_nothing(table: ExperienceTable, refs: InlineRefs, clock: Clock) -> None:
    lease(table, "filter")
    clock.time = 11.0
    table.ack(lease(table, "filter"))
    table.remove(KEY)
    assert len(refs) == 0


def test_what_is_kept_is_freed_afterwards(table: ExperienceTable, refs: InlineRefs) -> None:
    with table.keep_refs([KEY]):
        trained(table)
        assert (table.groups, len(refs)) == (0, 3)
    assert len(refs) == 0


def test_what_was_computed_of_a_group_that_has_gone_is_freed(table: ExperienceTable, refs: InlineRefs) -> None:
    table.reserve(OTHER)
    ref = refs.put({"tokens": [0] * 3})
    table.put(OTHER, [new_row(OTHER, {"tokens": ref}, length=3)], group=group(OTHER, ref))
    both = table.try_lease("filter", list)
    assert both is not None
    values = {row.row_id: refs.put({"score": 1.0}) for row in both.rows}
    table.remove(KEY)
    table.fill(both, "score", values)
    table.ack(both)
    table.remove(OTHER)
    assert len(refs) == 0


def test_what_was_computed_under_a_lease_that_ended_is_freed(table: ExperienceTable, refs: InlineRefs) -> None:
    lost = lease(table, "filter")
    values = {row.row_id: refs.put({"score": 1.0}) for row in lost.rows}
    table.give_back(lost)
    with pytest.raises(StaleLease):
        table.fill(lost, "score", values)
    table.remove(KEY)
    assert len(refs) == 0
