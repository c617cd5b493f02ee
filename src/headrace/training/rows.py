"""Rows of the table as a trainer or a scorer packs them: run where the model is, not in the event loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.experience.columns import read
from headrace.experience.header import Span, mask_of
from headrace.experience.index import Row
from headrace.models.packing import PackRow
from headrace.runtime.refs import Ref, Refs


@dataclass(frozen=True, slots=True)
class RowToTrain:
    """A row, and what of it enters the loss."""

    row: Row
    trained: tuple[Span, ...]
    fresh: tuple[Span, ...] | None = None
    """Tokens that show the engine's mismatch; None where nobody asks."""

    def __len__(self) -> int:
        return self.row.header.length


def pack_row(refs: Refs, given: RowToTrain, columns: Sequence[str]) -> PackRow:
    """With `columns` of the table, and `fresh` where it is given. Raises RefLost."""
    length = len(given)
    found = read(refs, given.row, ("tokens", "kept_sets", *columns))
    tokens, kept = found["tokens"], found["kept_sets"]
    beside: dict[str, Any] = {name: found[name] for name in columns}
    if given.fresh is not None:
        beside["fresh"] = mask_of(given.fresh, length).astype(np.float32)
    return PackRow(tokens, mask_of(given.trained, length), beside, kept)


def whole(row: Row) -> RowToTrain:
    """With all tokens that the policy chose."""
    return RowToTrain(row, row.header.spans)


def split(values: NDArray[Any], rows: Iterable[RowToTrain]) -> list[NDArray[Any]]:
    """What a pass gave for packed rows, [N] or [N, C], row by row."""
    return np.split(values, np.cumsum([len(row) for row in rows])[:-1])


def put_each(refs: Refs, name: str, parts: Iterable[NDArray[Any]]) -> list[Ref]:
    """A ref for each row, with this column."""
    return [refs.put({name: part}) for part in parts]
