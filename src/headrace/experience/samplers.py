"""Which of the ready rows a consumer takes next: pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from headrace.experience.flow import Flow
from headrace.experience.index import Row, RowId, Sampler


def whole_groups(ready: Mapping[RowId, Row]) -> list[RowId]:
    """All ready rows of the oldest ready group."""
    first = next(iter(ready.values()), None)
    return [] if first is None else [row.row_id for row in ready.values() if row.group == first.group]


def one_row(ready: Mapping[RowId, Row]) -> list[RowId]:
    """The oldest ready row."""
    return list(ready)[:1]


def sealed_batch(flow: Flow) -> Sampler:
    """All rows of the batch in order of their keys, once it is sealed and all are ready. For consumers of unit `batch`,
    which read `batch`."""

    def sampler(ready: Mapping[RowId, Row]) -> list[RowId]:
        if not flow.is_sealed:
            return []
        rows = [row for row in ready.values() if row.columns["batch"] == flow.batch]
        return in_order(rows) if len(rows) == flow.rows_of_batch() else []

    return sampler


def in_order(rows: Iterable[Row]) -> list[RowId]:
    """By key: so that no result depends on which group came first."""
    return [row.row_id for row in sorted(rows, key=lambda row: row.key)]


def token_budget(max_tokens: int, length: Callable[[Row], int]) -> Sampler:
    """As many ready rows as fit into `max_tokens` tokens, oldest first, and at least one.

    A row that does not fit is passed over for smaller ones behind it; it comes first in a later choice.
    """

    def sampler(ready: Mapping[RowId, Row]) -> list[RowId]:
        chosen: list[RowId] = []
        room = max_tokens
        for row in ready.values():
            tokens = length(row)
            if not chosen or tokens <= room:
                chosen.append(row.row_id)
                room -= tokens
            if room <= 0:
                break
        return chosen

    return sampler
