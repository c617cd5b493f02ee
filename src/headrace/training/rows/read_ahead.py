"""Rows of passes that ranks make together: read before any begins one, since none may stand in a pass that another has
no rows for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from headrace.models.packing import PackRow

R = TypeVar("R")


class ReadAhead(Generic[R]):
    """Blocking; on one compute lane."""

    def __init__(self, packed: Callable[[Sequence[R]], list[PackRow]]) -> None:
        """`packed` reads rows."""
        self._packed = packed
        self._ahead: list[list[PackRow]] = []

    def read(self, parts: Sequence[Sequence[R]]) -> None:
        """Rows of the passes that come next, instead of those that were read for others. Raises RefLost."""
        self._ahead = []
        self._ahead = [self._packed(rows) for rows in parts]

    def __call__(self, rows: Sequence[R]) -> list[PackRow]:
        """Those of the next pass, if they were read; else they are now. Raises RefLost."""
        if not self._ahead:
            return self._packed(rows)
        found = self._ahead.pop(0)
        if len(found) != len(rows):
            raise RuntimeError(f"{len(found)} rows were read ahead for another pass than this one of {len(rows)}")
        return found
