"""The filter: drops groups that would teach nothing, before anybody else leases their rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import cache

from headrace.experience.columns import group_of
from headrace.experience.finished_groups import FILTER
from headrace.experience.header import GroupHeader
from headrace.experience.leases import Row
from headrace.experience.sample import Group
from headrace.experience.samplers import whole_groups
from headrace.roles.context import RoleContext
from headrace.rollout.filters import Filter, drop_reason
from headrace.runtime.refs import Ref

_MOST_TOLD = 10

Record = Callable[[GroupHeader, Sequence[Ref], str], Awaitable[None]]
"""Given a group that was dropped, the refs of its samples, and the reason."""


Judge = Callable[[GroupHeader, Sequence[Ref], int], Awaitable[tuple[str | None, Sequence[str]]]]
"""Given a group, the refs of its samples, and the batch at hand: why it is dropped, and what filters failed with."""


class FilterRole:
    def __init__(
        self,
        context: RoleContext,
        filters: Sequence[Filter],
        record: Record | None = None,
        judge: Judge | None = None,
    ) -> None:
        """`record`: awaited with each group that was dropped. `judge`: who goes by `filters`, where they are elsewhere:
        on a worker."""
        self._context = context
        self._record = record
        self._elsewhere = judge
        self._filters = filters
        self._told: set[str] = set()
        """What filters failed with."""

    async def run(self) -> None:
        """Judge each group as it arrives: `keep` is written, or the group is dropped with the first reason."""
        table, flow = self._context.table, self._context.flow
        async for lease in self._context.leases(FILTER, whole_groups, "finished groups"):
            finished = table.group(lease.rows[0].group)
            header, samples = _judged(finished.header, lease.rows), finished.refs
            table.hold(lease)
            reason, faults = await self._reason(header, samples)
            if not lease.rows:  # it was handed back meanwhile
                table.ack(lease)
                continue
            with table.keep_refs([header.key]):
                table.ack(lease)
                if reason is None:
                    flow.keep(header.key)
                    continue
                self._tell(faults)
                flow.drop(header.key, reason, next(iter(faults), None), header)
                if self._record is not None:
                    await self._record(header, samples, reason)

    async def _reason(self, header: GroupHeader, samples: Sequence[Ref]) -> tuple[str | None, Sequence[str]]:
        batch = self._context.flow.batch
        if self._elsewhere is not None:
            return await self._elsewhere(header, samples, batch)
        faults: list[str] = []
        return drop_reason(self._filters, header, self._loader(header, samples), batch, faults.append), faults

    def _loader(self, header: GroupHeader, samples: Sequence[Ref]) -> Callable[[], Group]:
        """Loads the group once."""
        return cache(lambda: group_of(self._context.refs, header, samples))

    def _tell(self, faults: Sequence[str]) -> None:
        """Each is an event once, as long as they are few."""
        for words in faults:
            if words not in self._told and len(self._told) < _MOST_TOLD:
                self._told.add(words)
                self._context.report("filter_failed", {"message": words})


def _judged(header: GroupHeader, rows: Sequence[Row]) -> GroupHeader:
    """The group as it was finished, with the rewards that its rows have: a model may have had a say in them."""
    return header.rewarded([row.columns["reward"] for row in rows])
