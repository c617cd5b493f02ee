"""The filter judges each group once, keeps it or drops it, and lets its rows go either way."""

from __future__ import annotations

from collections.abc import Sequence

from role_house import LEASE_S, House, all_is_gone, try_role

from headrace.experience.header import GroupHeader
from headrace.experience.sample import GroupKey
from headrace.roles.filter import FilterRole
from headrace.rollout.filters import Whole
from headrace.runtime.refs import Ref

FIRST, SECOND = GroupKey(0, 0, 0), GroupKey(0, 1, 0)


def test_groups_are_kept_or_dropped_once_and_nobody_holds_their_rows() -> None:
    judged: list[GroupKey] = []
    recorded: list[tuple[GroupKey, str]] = []

    def dull(group: GroupHeader, whole: Whole, batch: int) -> str | None:
        judged.append(group.key)
        return None if group.key == FIRST else "dull"

    async def record(header: GroupHeader, refs: Sequence[Ref], why: str) -> None:
        recorded.append((header.key, why))

    async def body(house: House) -> None:
        await house.settle()
        assert judged == [FIRST, SECOND]
        assert house.flow.kept == [FIRST]
        assert house.flow.dropped == [(SECOND, "dull")] == recorded
        await house.runtime.clock.sleep(2 * LEASE_S)
        house.table.wake_all()
        await house.settle()
        assert judged == [FIRST, SECOND]  # no lease came back

    try_role("filter", ["reward"], [], lambda house: FilterRole(house.context, [dull], record), body)


def test_a_group_that_is_handed_back_while_it_is_judged_is_there_so_long_and_then_gone() -> None:
    read: list[int] = []

    def make(house: House) -> FilterRole:
        async def judge(header: GroupHeader, refs: Sequence[Ref], batch: int) -> tuple[str | None, list[str]]:
            house.table.remove(header.key)
            await house.runtime.clock.sleep(1.5 * LEASE_S)
            read.extend(len(house.table.refs.get(ref)["tokens"]) for ref in refs)
            return "dull", []

        return FilterRole(house.context, [], None, judge)

    async def body(house: House) -> None:
        await house.runtime.clock.sleep(4 * LEASE_S)
        assert read == [3] * 4
        assert (house.flow.kept, house.flow.dropped) == ([], [])
        await all_is_gone(house)

    try_role("filter", ["reward"], [], make, body)


def test_a_group_that_is_dropped_is_there_until_it_is_recorded() -> None:
    read: list[int] = []

    def make(house: House) -> FilterRole:
        async def record(header: GroupHeader, refs: Sequence[Ref], why: str) -> None:
            house.table.remove(header.key)
            await house.settle()
            read.extend(len(house.table.refs.get(ref)["tokens"]) for ref in refs)

        return FilterRole(house.context, [lambda group, whole, batch: "dull"], record)

    async def body(house: House) -> None:
        await house.runtime.clock.sleep(LEASE_S / 2)
        assert read == [3] * 4
        assert [why for _, why in house.flow.dropped] == ["dull"] * 2
        await all_is_gone(house)

    try_role("filter", ["reward"], [], make, body)
