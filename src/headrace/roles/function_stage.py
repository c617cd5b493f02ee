"""A stage of the user's own: a function from columns of the table to further columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.experience.index import Row, RowId
from headrace.experience.samplers import whole_groups
from headrace.roles.context import RoleContext

LANE = "stages"


class StageError(RuntimeError):
    """A user's own stage raised, or gave something else than its columns."""


class FunctionStageRole:
    """Calls the function as its columns become ready; what it gives is checked before anybody reads it."""

    def __init__(
        self,
        context: RoleContext,
        function: Callable[..., Any],
        *,
        name: str,
        reads: Sequence[str],
        writes: Sequence[str],
        by_group: bool,
    ) -> None:
        """`function`: called with `reads` as keywords, a column of one row each, or lists of them over the rows of a
        group (`by_group`); returns a mapping with `writes`, an array [T] or a number for each row."""
        self._context = context
        self._function = function
        self._name = name
        self._reads = tuple(reads)
        self._writes = tuple(writes)
        self._by_group = by_group

    async def run(self) -> None:
        """Until the run is finished. Raises StageError."""
        table = self._context.table
        sampler = whole_groups if self._by_group else _first
        async for lease in self._context.leases(self._name, sampler, "columns that it reads"):
            rows = list(lease.rows)
            table.hold(lease)
            columns = await self._context.runtime.compute(LANE, self._call, rows)
            there = [row.row_id for row in lease.rows]
            for name, values in columns.items():
                of_row = {row.row_id: value for row, value in zip(rows, values, strict=True)}
                table.write(there, name, [of_row[row_id] for row_id in there], lease)
            table.ack(lease)

    def _call(self, rows: Sequence[Row]) -> dict[str, list[NDArray[np.float32]]]:
        given = {name: [row.columns[name] for row in rows] for name in self._reads}
        try:
            result = self._function(**given if self._by_group else {name: values[0] for name, values in given.items()})
        except Exception as error:
            raise StageError(f"{self._what} raised {type(error).__name__}: {error}") from error
        if not isinstance(result, Mapping) or set(result) != set(self._writes):
            got = sorted(map(str, result)) if isinstance(result, Mapping) else type(result).__name__
            raise StageError(f"{self._what} returned {got}; return a mapping with {', '.join(self._writes)}")
        return {
            name: self._checked(name, list(values) if self._by_group else [values], rows)
            for name, values in result.items()
        }

    def _checked(self, name: str, values: list[Any], rows: Sequence[Row]) -> list[NDArray[np.float32]]:
        if len(values) != len(rows):
            raise StageError(f"{self._what} returned {len(values)} values of {name} for {len(rows)} rows")
        columns = []
        for row, value in zip(rows, values, strict=True):
            length = len(row.columns["tokens"])
            try:
                column = np.asarray(value, dtype=np.float32)
            except (TypeError, ValueError) as error:
                raise StageError(f"{self._what} returned no numbers as {name}: {error}") from error
            if column.shape not in ((), (length,)):
                raise StageError(f"{self._what} returned {name} of shape {column.shape} for a row of {length} tokens")
            if not np.isfinite(column).all():
                raise StageError(f"{self._what} returned {name} with a value that is not finite")
            columns.append(np.broadcast_to(column, (length,)).copy())
        return columns

    @property
    def _what(self) -> str:
        return f"stage {self._name}"


def _first(ready: Mapping[RowId, Row]) -> list[RowId]:
    return list(ready)[:1]
