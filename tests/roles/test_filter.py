"""The filter judges each group once, keeps it or drops it, and lets its rows go either way."""

from __future__ import annotations

from collections.abc import Sequence

from role_house import LEASE_S, House, try_role

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
