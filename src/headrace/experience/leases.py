"""What the table has, who reads it, and what is handed out of it: plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from headrace.experience.header import SampleHeader
from headrace.experience.sample import GroupKey

RowId = int


class TableError(RuntimeError):
    """A row, column or consumer that the table does not have, or has already."""


class StaleLease(TableError):
    """The lease has expired: its rows went back, and may be with another consumer by now."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """Who leases rows. With unit `group`, rows are ready once all rows of their group are, and are leased whole."""

    name: str
    reads: frozenset[str]
    unit: Literal["row", "group"] = "row"
    writes: frozenset[str] = frozenset()
    """What it writes again if it is lost; `lose` leaves what nobody writes."""


NewRow = tuple[SampleHeader, dict[str, Any]]
"""A row that is put, with the columns that it comes with."""


@dataclass(slots=True)
class Row:
    row_id: RowId
    header: SampleHeader
    columns: dict[str, Any]
    """Numbers, short text and refs: plain data."""

    @property
    def group(self) -> GroupKey:
        return self.header.key

    @property
    def key(self) -> tuple[GroupKey, RowId]:
        """Its place among other rows, whichever group came first: those of a group are in the order of its samples."""
        return self.group, self.row_id


@dataclass(slots=True)
class Lease:
    """Rows handed to a consumer until `expires` (seconds of the table's clock)."""

    lease_id: int
    consumer: str
    rows: list[Row]
    expires: float
    groups: tuple[GroupKey, ...] = ()
    """Of the rows that it was granted with."""


@dataclass(frozen=True, slots=True)
class Lost:
    """What came of the loss of columns."""

    rows: int
    """That are to be computed again."""
    leases: list[Lease]
    """That have ended by it."""
    groups: list[GroupKey]
    """That have left: they were trained, and only stages that nobody waits for were not done with them."""
