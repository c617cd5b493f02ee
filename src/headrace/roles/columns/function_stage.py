"""A stage of the user's own: a function from columns of the table to further columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from headrace.experience.index import Sampler
from headrace.experience.leases import Lease
from headrace.experience.samplers import one_row, sealed_batch, whole_groups
from headrace.roles.columns.filling import Filled, asked, by_row
from headrace.roles.columns.functions import AskedFunctions
from headrace.roles.context import RoleContext


class FunctionColumns:
    """Has the function called as its columns become ready; what it gives is checked before anybody reads it. See
    `Computed`."""

    waits_for = "columns that it reads"

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
        self.name = name
        self._reads_groups = "group" in reads
        self.sampler: Sampler = {"row": one_row, "group": whole_groups, "batch": sealed_batch(context.flow)}[unit]

    def begin_again(self) -> None:
        """Nothing of the functions' worker outlives a call."""

    async def compute(self, lease: Lease) -> Filled:
        """See `Computed.compute`. Raises PieceError."""
        rows, table = list(lease.rows), self._context.table
        groups = []
        if self._reads_groups:
            groups = [table.group(key) for key in dict.fromkeys(row.group for row in rows)]
        asking = self._functions.stage(self.name, rows, groups)
        return Filled(by_row(rows, await asked(self._context, asking, f"stage {self.name}")))
