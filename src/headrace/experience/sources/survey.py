"""The one look at every row of a source, before anything expensive starts: what cannot be used is told here."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.config import ConfigError
from headrace.experience.sources.arrow_batches import (
    ids_of,
    message_counts,
    numbers_of,
    pick,
    prompt_lengths,
    rows_from,
    rows_of,
)
from headrace.experience.sources.arrow_files import Look
from headrace.experience.sources.rows import Row, Rows, dig, name_row, with_nested

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
Asked = tuple[str | list[dict[str, Any]], list[dict[str, Any]] | None]
"""A prompt, text or chat messages, and the tools that the policy may call."""
CheckRows = Callable[[Iterable[tuple[str, Row]]], None]
"""Given rows, each with its name; raises ConfigError for the first that cannot be used."""
_TOGETHER = 4096
"""Rows that are handed to a check."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What is asked of every row of a source."""

    asked: Callable[[Row, str], Asked]
    """What a row asks, by the row and its name; raises ConfigError."""
    prompt_column: str
    tools_column: str | None = None
    id_column: str | None = None
    required: tuple[str, ...] = ()
    """Columns that have a value in every row."""
    read: tuple[str, ...] = ()
    """Columns that `check` reads, also where not every row has them."""
    check: CheckRows | None = None
    numbers: str | None = None
    """A column that is a number in every row."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All that are named, but for the prompt's."""
        others = [column for column in (self.id_column, self.numbers) if column is not None]
        return tuple(dict.fromkeys([*others, *self.required, *self.read]))

    @property
    def nested(self) -> tuple[str, ...]:
        """Of all that are named, those that may be nested."""
        return tuple(column for column in (self.prompt_column, *self.columns) if "." in column)


class SourceSurvey:
    """Keeps 8 bytes a row, and 8 more for each of ids and numbers. `finish` is called when all rows were seen."""

    def __init__(self, needs: Needs) -> None:
        self._needs = needs
        self._nested = needs.nested
        self._lengths = array("i")
        self._messages = array("i")
        self._ids = array("q")
        self._values = array("d")
        self._waiting: list[tuple[str, Row]] = []
        self.first_chat: int | None = None
        """Index of the first row whose prompt is of chat messages."""
        self.first_with_tools: int | None = None

    def __len__(self) -> int:
        return len(self._lengths)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Bytes of each row's prompt as UTF-8, without what a template adds."""
        return np.frombuffer(self._lengths, np.int32)

    @property
    def messages(self) -> NDArray[np.int32]:
        """Chat messages of each row's prompt; 0 of one that is text."""
        return np.frombuffer(self._messages, np.int32)

    @property
    def numbers(self) -> NDArray[np.float64]:
        """Of the column `Needs.numbers`."""
        return np.frombuffer(self._values, np.float64)

    def row(self, where: str, number: int, row: Row) -> None:
        row = with_nested(row, self._nested)
        content, tools = self._needs.asked(row, where)
        self._others(where, row)
        if not isinstance(content, str) and self.first_chat is None:
            self.first_chat = len(self)
        if tools is not None and self.first_with_tools is None:
            self.first_with_tools = len(self)
        said = content if isinstance(content, str) else json.dumps([content, tools or []], ensure_ascii=False)
        self._lengths.append(len(said.encode(errors="replace")))
        self._messages.append(0 if isinstance(content, str) else len(content))
        if len(self._waiting) >= _TOGETHER:
            self._check_waiting()

    def look(self, where: str) -> Look:
        """What sees batches."""

        def look(batch: pa.RecordBatch, start: int) -> None:
            if not self._is_plainly_good(batch, where, start):
                for number, row in enumerate(rows_of(batch), start=start + 1):
                    self.row(name_row(where, "row", number), number, row)

        return look

    def _is_plainly_good(self, batch: pa.RecordBatch, where: str, start: int) -> bool:
        """Whether the columns tell that all rows are, many times faster than the rows themselves. If not, each is to be
        looked at: some may be bad, or of a kind that is not known here."""
        needs = self._needs
        lengths, columns = prompt_lengths(batch, needs.prompt_column), pick(batch, needs.columns)
        if needs.tools_column is not None and needs.tools_column in batch.schema.names:
            return False
        if lengths is None or any(name not in columns or columns[name].null_count for name in needs.required):
            return False
        ids = _all(needs.id_column, columns, ids_of)
        values = _all(needs.numbers, columns, numbers_of)
        seen = {name: columns[name] for name in needs.read if name in columns}
        if ids is None or values is None or (needs.read and not seen):
            return False
        self._check_waiting()
        if needs.check is not None:
            rows = enumerate(rows_from(seen), start=start + 1)
            needs.check((name_row(where, "row", number), row) for number, row in rows)
        counts = message_counts(batch, needs.prompt_column)
        if self.first_chat is None and any(counts):
            self.first_chat = len(self)
        self._lengths.extend(lengths.to_pylist())
        self._messages.extend(counts)
        self._ids.extend(map(hash, ids))
        self._values.extend(values)
        return True

    def finish(self, rows: Rows) -> None:
        """All rows were seen. Raises ConfigError for an id that two of them have, and for what is still unchecked."""
        self._check_waiting()
        if not len(rows):
            column = self._needs.prompt_column
            raise ConfigError(f"{rows.where} holds no rows; write one JSON object a line, as {{{column!r}: ...}}")
        if self._needs.id_column is None:
            return
        hashes = np.frombuffer(self._ids, np.int64)
        order = np.argsort(hashes, kind="stable")
        twins = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
        for first, second in sorted(
            ((int(order[one]), int(order[one + 1])) for one in twins), key=lambda pair: pair[1]
        ):
            where = name_row(rows.where, rows.unit, rows.number(second))
            value = id_of(rows[second], self._needs.id_column, where)
            if value == id_of(rows[first], self._needs.id_column, where):
                raise ConfigError(
                    f"{where} has the id {value!r} of {rows.unit} {rows.number(first)} (column "
                    f"{self._needs.id_column!r}); make ids unique, or leave data.id_column out to use {rows.unit} "
                    "numbers"
                )

    def _others(self, where: str, row: Row) -> None:
        needs = self._needs
        for column in needs.required:
            if row.get(column) is None:
                raise ConfigError(
                    f"{where} has no value in column {column!r} ({columns_of(row)}); fill it in, or "
                    "correct the config key that names the column"
                )
        if needs.id_column is not None:
            self._ids.append(hash(id_of(row, needs.id_column, where)))  # of the text: only compared here
        if needs.numbers is not None:
            self._values.append(_number(row, needs.numbers, where))
        if needs.check is not None:
            self._waiting.append((where, row))

    def _check_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self._needs.check is not None and waiting:
            self._needs.check(waiting)


def _all(
    column: str | None, columns: dict[str, pa.Array], read: Callable[[pa.Array], list[T] | None]
) -> list[T] | None:
    """The values of a column, none of no column; None where it is not there, or some are not what they should be."""
    if column is None:
        return []
    return read(columns[column]) if column in columns else None


def id_of(row: Row, column: str, where: str) -> str:
    """Raises ConfigError where it is no id."""
    value = dig(row, column)
    if value is None and column not in row:
        raise ConfigError(
            f"{where} has no id column {column!r} ({columns_of(row)}); set data.id_column to one of them, "
            "or leave it out to use line numbers"
        )
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ConfigError(f"{where}: the id in column {column!r} is {value!r}; give text or a whole number")
    return str(value)


def columns_of(row: Row) -> str:
    return "it has " + (", ".join(repr(name) for name in row) or "no columns")


def _number(row: Row, column: str, where: str) -> float:
    value: Any = row.get(column)
    if isinstance(value, str):  # of a CSV file
        try:
            value = float(value)
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ConfigError(
            f"{where} has {row.get(column)!r} in column {column!r}, by which data.curriculum orders the rows; give a "
            f"number ({columns_of(row)})"
        )
    return float(value)
