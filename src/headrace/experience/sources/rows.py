"""What every reader gives: the rows of one source, by number."""

from __future__ import annotations

from typing import Any, Protocol

Row = dict[str, Any]
"""JSON values only."""


class Rows(Protocol):
    """Read from the disk when asked for; the same values at every time."""

    where: str
    """The file, folder or name, for messages."""
    unit: str
    """What a row is called: `line` or `row`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Row: ...

    def number(self, index: int) -> int:
        """Of the row in its file, from 1."""
        ...


class Survey(Protocol):
    """Sees every row once, while its source is opened."""

    def row(self, where: str, number: int, row: Row) -> None:
        """The next row, called `where` in messages. Raises ConfigError for one that cannot be used."""
        ...


def name_row(where: str, unit: str, number: int) -> str:
    return f"{where}, {unit} {number}"


def dig(row: Row, column: str) -> Any:
    """The value in a column, or in a nested one, as `reward_model.ground_truth`; None if there is none."""
    if column in row or "." not in column:
        return row.get(column)
    value: Any = row
    for part in column.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def with_nested(row: Row, columns: tuple[str, ...]) -> Row:
    """`row`, in which those of `columns` that are nested are also there under their dotted names."""
    found = {column: value for column in columns if column not in row and (value := dig(row, column)) is not None}
    return {**row, **found} if found else row
