"""The filter: drops groups that would teach nothing, before anybody else leases their rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from headrace.experience.index import Row
from headrace.experience.sample import Group
from headrace.experience.samplers import whole_groups
from headrace.roles.context import RoleContext
from headrace.rollout.filters import Filter, drop_reason

NAME = "filter"
_MOST_TOLD = 10


class FilterRole:
    def __init__(
        self,
        context: RoleContext,
        filters: Sequence[Filter],
        record: Callable[[Group, str], Awaitable[None]] | None = None,
    ) -> None:
        """`record`: awaited with each group that was dropped, and the reason."""
        self._context = context
        self._record = record
        self._filters = filters
        self._told: set[str] = set()
        """What filters failed with."""

    async def run(self) -> None:
        """Judge each group as it arrives: `keep` is written, or the group is dropped with the first reason."""
        async for lease in self._context.leases(NAME, whole_groups, "finished groups"):
            group = _group_of(lease.rows)
            faults: list[str] = []
            reason = drop_reason(self._filters, group, self._context.flow.batch, faults.append)
            self._context.table.ack(lease)
            if reason is None:
                self._context.flow.keep(group.key)
                continue
            self._tell(faults)
            self._context.flow.drop(group.key, reason, next(iter(faults), None), group)
            if self._record is not None:
                await self._record(group, reason)

    def _tell(self, faults: Sequence[str]) -> None:
        """Each is an event once, as long as they are few."""
        for words in faults:
            if words not in self._told and len(self._told) < _MOST_TOLD:
                self._told.add(words)
                self._context.report("filter_failed", {"message": words})


def _group_of(rows: Sequence[Row]) -> Group:
    """The group as it was finished, with the rewards that its rows have: a model may have had a say in them."""
    group: Group = rows[0].columns["group"]
    rewards = iter(row.columns["reward"] for row in rows)
    samples = (replace(sample, reward=next(rewards)) if sample.is_trainable else sample for sample in group.samples)
    return replace(group, samples=tuple(samples))
