"""Which of the ready rows a consumer takes next: pure functions."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.experience.flow import Flow
from headrace.experience.index import Sampler
from headrace.experience.leases import Row, RowId
from headrace.experience.ready_rows import Length, ReadyRows


def whole_groups(ready: ReadyRows) -> list[RowId]:
    """All ready rows of the oldest ready group."""
    return ready.oldest_group()


def one_row(ready: ReadyRows) -> list[RowId]:
    """The oldest ready row."""
    oldest = ready.oldest()
    return [] if oldest is None else [oldest.row_id]


def sealed_batch(flow: Flow) -> Sampler:
    """All rows of the batch in order of their keys, once it is sealed and all are ready. For consumers of unit `batch`,
    which read `batch`."""

    def sampler(ready: ReadyRows) -> list[RowId]:
        if not flow.is_sealed:
            return []
        rows = ready.of_batch(flow.batch)
        return in_order(rows) if len(rows) == flow.rows_of_batch() else []

    return sampler


def in_order(rows: Iterable[Row]) -> list[RowId]:
    """By key: so that no result depends on which group came first."""
    return [row.row_id for row in sorted(rows, key=lambda row: row.key)]


def token_budget(max_tokens: int, length: Length) -> Sampler:
    """As many ready rows as fit into `max_tokens` tokens, oldest first, and at least one.

    A row that does not fit is passed over for smaller ones behind it; it comes first in a later choice.
    """

    def sampler(ready: ReadyRows) -> list[RowId]:
        return ready.fitting(max_tokens, length)

    return sampler
