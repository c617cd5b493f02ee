"""The role that fills columns: the reference's, the teacher's, a critic's values, rewards, stages of the user's own,
advantages. What differs is how they are computed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from headrace.experience.index import Sampler
from headrace.experience.leases import Lease, Row, RowId, StaleLease
from headrace.roles.abandoned import freed_if_left
from headrace.roles.context import RoleContext
from headrace.runtime.refs import RefLost, refs_in
from headrace.runtime.workers import WorkerLost

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Filled:
    """What was computed of the rows of a lease."""

    columns: Mapping[str, Mapping[RowId, Any]]
    then: Callable[[], None] = lambda: None
    """Called once it is written."""


async def asked(context: RoleContext, asking: Coroutine[Any, Any, T], what: str) -> T:
    """What the functions worker answers. Raises StaleLease if it was lost meanwhile: the leases of who asked have ended
    with it."""
    try:
        return await freed_if_left(context.runtime, context.refs, asking, what)
    except WorkerLost as lost:
        raise StaleLease(str(lost)) from lost


def by_row(rows: Sequence[Row], columns: Mapping[str, Sequence[Any]]) -> dict[str, dict[RowId, Any]]:
    """Of each column its values, which are in the order of `rows`."""
    return {
        name: {row.row_id: value for row, value in zip(rows, values, strict=True)} for name, values in columns.items()
    }


class Computed(Protocol):
    """Columns, as they are computed."""

    @property
    def name(self) -> str:
        """Of the stage."""

    @property
    def sampler(self) -> Sampler:
        """Which ready rows are computed together."""

    @property
    def waits_for(self) -> str:
        """Words for what it waits for."""

    async def compute(self, lease: Lease) -> Filled:
        """Its rows are held meanwhile. Raises StaleLease where they are to be leased again, RefLost where what they are
        computed from is gone."""

    def begin_again(self) -> None:
        """The role has ended, and the run went back to a commit: it goes on from there."""


class ColumnRole:
    """Leases rows as what they are computed from is there, holds them while they are, writes, and lets them go."""

    def __init__(self, context: RoleContext, computed: Computed) -> None:
        self._context = context
        self._computed = computed

    def begin_again(self) -> None:
        """See `Computed.begin_again`."""
        self._computed.begin_again()

    async def run(self) -> None:
        """Until the run is finished. Raises what computing raises."""
        table, computed = self._context.table, self._computed
        async for lease in self._context.leases(computed.name, computed.sampler, computed.waits_for):
            found = Filled({})
            try:
                table.hold(lease)
                found = await self._found(lease)
                for column, values in found.columns.items():
                    table.fill(lease, column, values)
                table.ack(lease)
            except StaleLease:  # with what was computed: the rows are leased again
                for ref in refs_in(found.columns):
                    self._context.refs.free(ref)
                with suppress(StaleLease):
                    table.give_back(lease)
                continue
            found.then()

    async def _found(self, lease: Lease) -> Filled:
        """What is computed. Raises StaleLease if the lease ended with what it was computed from: whoever loses a column
        has the table end the leases of those who read it, while they may be in the midst of it."""
        try:
            return await self._computed.compute(lease)
        except RefLost:
            self._context.table.hold(lease)
            raise
