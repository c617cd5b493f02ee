"""A stage of the user's own: a function from columns of the table to further columns."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from headrace.experience.index import StaleLease
from headrace.experience.samplers import one_row, sealed_batch, whole_groups
from headrace.roles.abandoned import freed_if_left
from headrace.roles.context import RoleContext
from headrace.roles.functions import AskedFunctions
from headrace.runtime.workers import WorkerLost


class FunctionStageRole:
    """Has the function called as its columns become ready; what it gives is checked before anybody reads it."""

    def __init__(
        self,
        context: RoleContext,
        functions: AskedFunctions,
        *,
        name: str,
        reads: Sequence[str],
        unit: Literal["row", "group", "batch"],
    ) -> None:
        """`reads`: what the function is called with. `unit`: over a row, a group or the sealed batch."""
        self._context = context
        self._functions = functions
        self._name = name
        self._reads_groups = "group" in reads
        self._unit = unit

    async def run(self) -> None:
        """Until the run is finished. Raises PieceError."""
        table = self._context.table
        samplers = {"row": one_row, "group": whole_groups, "batch": sealed_batch(self._context.flow)}
        sampler = samplers[self._unit]
        async for lease in self._context.leases(self._name, sampler, "columns that it reads"):
            rows = list(lease.rows)
            table.hold(lease)
            groups = []
            if self._reads_groups:
                groups = [table.group(key) for key in dict.fromkeys(row.group for row in rows)]
            try:
                asking = self._functions.stage(self._name, rows, groups)
                columns = await freed_if_left(self._context, asking, f"stage {self._name}")
                for name, values in columns.items():
                    table.fill(lease, name, {row.row_id: value for row, value in zip(rows, values, strict=True)})
                table.ack(lease)
            except (StaleLease, WorkerLost):  # with what was computed: the rows are leased again
                with suppress(StaleLease):
                    table.give_back(lease)
