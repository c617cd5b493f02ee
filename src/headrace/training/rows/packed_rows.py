"""Rows of the table as a trainer or a scorer packs them: run where the model is, not in the event loop."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.experience.columns import COLUMN_TYPES, EXPERTS, OnChosenTokens, read
from headrace.experience.header import SampleHeader, Span, mask_of
from headrace.experience.leases import Row
from headrace.experience.sample import GroupKey, SampleStatus
from headrace.models.packing import PackRow
from headrace.runtime.refs import Ref, Refs
from headrace.runtime.wire.wire_types import WireTypes

_ALWAYS = ("tokens", "kept_sets", "temperatures")


@dataclass(frozen=True, slots=True)
class RowToTrain:
    """What a model is told of a row: plain data, which any process can be given."""

    header: SampleHeader
    columns: Mapping[str, object]
    """Refs and numbers, of the columns that are read."""
    trained: tuple[Span, ...]
    """The tokens that enter the loss, or are scored."""
    fresh: tuple[Span, ...] | None = None
    """Tokens that show the engine's mismatch; None where nobody asks."""

    def __len__(self) -> int:
        return self.header.length


ROW_TYPES = WireTypes(
    {
        "group_key": GroupKey,
        "on_chosen_tokens": OnChosenTokens,
        "row_to_train": RowToTrain,
        "sample_header": SampleHeader,
        "sample_status": SampleStatus,
        "span": Span,
    }
).with_types(COLUMN_TYPES)


def to_train(
    row: Row, trained: tuple[Span, ...], columns: Collection[str], fresh: tuple[Span, ...] | None = None
) -> RowToTrain:
    """With `columns` of the table, beside tokens, kept sets and temperatures. Where `EXPERTS` is one of them, who packs
    the row routes by it."""
    return RowToTrain(row.header, {name: row.columns[name] for name in (*_ALWAYS, *columns)}, trained, fresh)


def pack_row(refs: Refs, given: RowToTrain, columns: Sequence[str]) -> PackRow:
    """With `columns` of the table, and `fresh` where it is given. Raises RefLost."""
    length = len(given)
    routed = (EXPERTS,) if EXPERTS in given.columns else ()
    found = read(refs, given, (*_ALWAYS, *routed, *columns))
    tokens, kept, temperatures = (found[name] for name in _ALWAYS)
    beside: dict[str, Any] = {name: found[name] for name in columns}
    if given.fresh is not None:
        beside["fresh"] = mask_of(given.fresh, length).astype(np.float32)
    return PackRow(tokens, mask_of(given.trained, length), beside, kept, temperatures, found.get(EXPERTS))


def split(values: NDArray[Any], rows: Iterable[RowToTrain]) -> list[NDArray[Any]]:
    """What a pass gave for packed rows, [N] or [N, C], row by row."""
    return np.split(values, np.cumsum([len(row) for row in rows])[:-1])


def put_each(refs: Refs, name: str, parts: Iterable[NDArray[Any]]) -> list[Ref]:
    """A ref for each row, with this column."""
    return [refs.put({name: part}) for part in parts]
