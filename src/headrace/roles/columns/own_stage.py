"""A call of a stage of the user's own: from columns of rows to further columns, which are checked. Run off the event
loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.pieces import PieceError, raised
from headrace.experience.columns import Columned, FinishedGroup, group_of, read, refs_of
from headrace.runtime.refs import Ref, Refs, near


class OwnStage:
    """Blocking."""

    def __init__(
        self,
        refs: Refs,
        function: Callable[..., Any],
        *,
        name: str,
        reads: Sequence[str],
        writes: Sequence[str],
        by_row: bool,
    ) -> None:
        """`function`: called with `reads` as keywords, a column of one row each, or (unless `by_row`) lists of them
        over some rows; returns a mapping with `writes`, an array [T] or a number for each row."""
        self._refs = refs
        self._function = function
        self._what = f"stage {name}"
        self._reads = tuple(reads)
        self._writes = tuple(writes)
        self._by_row = by_row

    def __call__(self, rows: Sequence[Columned], groups: Sequence[FinishedGroup]) -> dict[str, list[Ref]]:
        """Of each column that it writes a ref for each row. `groups`: of the rows, if it reads them. Raises PieceError,
        RefLost."""
        of_groups = {ref for one in groups for ref in one.refs}
        refs, by_row = near(self._refs, refs_of(rows) | of_groups), self._by_row
        wholes = {one.header.key: group_of(refs, one.header, one.refs) for one in groups}
        given: dict[str, list[Any]] = {name: [] for name in self._reads}
        columns = [name for name in self._reads if name != "group"]
        for row in rows:
            found = read(refs, row, columns)
            for name in self._reads:
                given[name].append(wholes[row.header.key] if name == "group" else _read_only(found[name]))
        try:
            result = self._function(**{name: values[0] for name, values in given.items()} if by_row else given)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of a Rust extension that panics, say
            raise raised(self._what, error) from error
        if not isinstance(result, Mapping) or set(result) != set(self._writes):
            got = sorted(map(str, result)) if isinstance(result, Mapping) else type(result).__name__
            raise PieceError(f"{self._what} returned {got}; return a mapping with {', '.join(self._writes)}")
        checked = {name: self._checked(name, [values] if by_row else values, rows) for name, values in result.items()}
        return {name: [refs.put({name: values}) for values in columns] for name, columns in checked.items()}

    def _checked(self, name: str, values: Any, rows: Sequence[Columned]) -> list[NDArray[np.float32]]:
        is_list = isinstance(values, Sequence) and not isinstance(values, str)
        if not (is_list or (isinstance(values, np.ndarray) and values.ndim)):
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


def _read_only(value: Any) -> Any:
    """An array as a view that cannot be written to: others read the same one."""
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
    return value
