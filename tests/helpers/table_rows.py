"""Rows of the experience table, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from headrace.experience.header import SampleHeader, Span
from headrace.experience.leases import NewRow, Row
from headrace.experience.sample import GroupKey, SampleStatus

KEY = GroupKey(0, 0, 0)


def header(
    key: GroupKey = KEY,
    *,
    length: int = 3,
    spans: Iterable[Sequence[int]] | None = None,
    status: SampleStatus = SampleStatus.COMPLETED,
    **fields: Any,
) -> SampleHeader:
    """Unless `spans` are given, version 0 sampled all tokens but the first."""
    found = ((0, 0, 1, length),) if spans is None and length > 1 else spans or ()
    defaults = {"prompt_id": str(key.position), "episode": 0, "index": 0}
    return SampleHeader(
        key=key, length=length, status=status, spans=tuple(Span(*span) for span in found), **{**defaults, **fields}
    )


def new_row(key: GroupKey, columns: dict[str, Any], **fields: Any) -> NewRow:
    """As long as its tokens, unless `length` is given."""
    if "tokens" in columns and "length" not in fields:
        fields["length"] = len(columns["tokens"])
    return header(key, **fields), columns


def row(row_id: int, columns: dict[str, Any], key: GroupKey = KEY, **fields: Any) -> Row:
    return Row(row_id, *new_row(key, columns, **fields))
