"""A stage of the user's own: a function from columns of the table to further columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.pieces import PieceError, raised
from headrace.experience.columns import FinishedGroup, group_of, read
from headrace.experience.index import Row
from headrace.experience.sample import GroupKey
from headrace.experience.samplers import one_row, sealed_batch, whole_groups
from headrace.roles.context import RoleContext
from headrace.runtime.refs import Ref

LANE = "stages"


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
        unit: Literal["row", "group", "batch"],
    ) -> None:
        """`function`: called with `reads` as keywords, a column of one row each, or lists of them over the rows of a
        group or of the sealed batch; returns a mapping with `writes`, an array [T] or a number for each row."""
        self._context = context
        self._function = function
        self._name = name
        self._reads = tuple(reads)
        self._writes = tuple(writes)
        self._unit = unit

    async def run(self) -> None:
        """Until the run is finished. Raises PieceError."""
        table = self._context.table
        samplers = {"row": one_row, "group": whole_groups, "batch": sealed_batch(self._context.flow)}
        sampler = samplers[self._unit]
        async for lease in self._context.leases(self._name, sampler, "columns that it reads"):
            rows = list(lease.rows)
            table.hold(lease)
            groups = {}
            if "group" in self._reads:
                groups = {row.group: self._context.table.group(row.group) for row in rows}
            columns = await self._context.compute(LANE, f"{self._what} to return", self._call, rows, groups)
            for name, values in columns.items():
                table.fill(lease, name, {row.row_id: value for row, value in zip(rows, values, strict=True)})
            table.ack(lease)

    def _call(self, rows: Sequence[Row], groups: Mapping[GroupKey, FinishedGroup]) -> dict[str, list[Ref]]:
        """Of each column that it writes a ref for each row. `groups`: of the rows, if it reads them. On the lane."""
        refs = self._context.refs
        wholes = {key: group_of(refs, one.header, one.refs) for key, one in groups.items()}
        given: dict[str, list[Any]] = {name: [] for name in self._reads}
        for row in rows:
            for name, value in read(refs, row, self._reads).items():
                given[name].append(wholes[row.group] if name == "group" else _read_only(value))
        by_row = self._unit == "row"
        try:
            result = self._function(**{name: values[0] for name, values in given.items()} if by_row else given)
        except (Exception, SystemExit) as error:
            raise raised(self._what, error) from error
        if not isinstance(result, Mapping) or set(result) != set(self._writes):
            got = sorted(map(str, result)) if isinstance(result, Mapping) else type(result).__name__
            raise PieceError(f"{self._what} returned {got}; return a mapping with {', '.join(self._writes)}")
        checked = {name: self._checked(name, [values] if by_row else values, rows) for name, values in result.items()}
        return {name: [refs.put({name: values}) for values in columns] for name, columns in checked.items()}

    def _checked(self, name: str, values: Any, rows: Sequence[Row]) -> list[NDArray[np.float32]]:
        if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str) or np.ndim(values) == 0:
            raise PieceError(f"{self._what} returned {type(values).__name__} as {name}; return a list, a value a row")
        if len(values) != len(rows):
            raise PieceError(f"{self._what} returned {len(values)} values of {name} for {len(rows)} rows")
        columns = []
        for row, value in zip(rows, values, strict=True):
            length = row.header.length
            try:
                column = np.asarray(value, dtype=np.float32)
            except (TypeError, ValueError) as error:
                raise PieceError(f"{self._what} returned no numbers as {name}: {error}") from error
            if column.shape not in ((), (length,)):
                raise PieceError(f"{self._what} returned {name} of shape {column.shape} for a row of {length} tokens")
            if not np.isfinite(column).all():
                raise PieceError(f"{self._what} returned {name} with a value that is not finite")
            columns.append(np.broadcast_to(column, (length,)).copy())
        return columns

    @property
    def _what(self) -> str:
        return f"stage {self._name}"


def _read_only(value: Any) -> Any:
    """An array as a view that cannot be written to: others read the same one."""
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
    return value
