"""The rows that one consumer could lease now, oldest first, and what samplers ask of them.

Each question costs O(log n) for each row that it gives: nothing looks at rows that it does not take.

**Order.** A row is behind those that became ready before it. Once rows are given back, all that are ready then are in
the order of their ids, and later ones behind them. So a position is either a row's id or, for a row that became ready
since the last time that any were given back (it has *arrived*), a number above all those ids. A row moves from the
latter to the former at most once for each time that it becomes ready.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from headrace.experience.first_fit import FirstFit, Found
from headrace.experience.leases import Row, RowId
from headrace.experience.sample import GroupKey

Length = Callable[[Row], int]
"""Tokens of a row; the same function each time, since lengths are kept."""


class _Line:
    """Rows of one batch by position, with their lengths."""

    __slots__ = ("fits", "rows", "tokens")

    def __init__(self) -> None:
        self.fits = FirstFit()
        self.rows = 0
        self.tokens = 0


class ReadyRows(Mapping[RowId, Row]):
    def __init__(self, groups: Mapping[GroupKey, Collection[RowId]], *, by_batch: bool) -> None:
        """`groups`: the ids of all rows of a group. `by_batch`: the consumer reads `batch`: its ready rows have it."""
        self._groups = groups
        self._by_batch = by_batch
        self._length: Length | None = None
        self._rows: dict[RowId, Row] = {}
        self._at: dict[int, Row] = {}
        """By position."""
        self._arrived: dict[RowId, int] = {}
        """The positions of those that have arrived; of others it is their id."""
        self._next = 0
        """The position of the next to arrive."""
        self._lines: dict[int | None, _Line] = {}
        """By batch; one if the consumer does not read it."""

    def __getitem__(self, row_id: RowId) -> Row:
        return self._rows[row_id]

    def __contains__(self, row_id: object) -> bool:
        return row_id in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[RowId]:
        """All, in order. For those who look at all: O(n log n)."""
        return iter([self._at[position].row_id for position in sorted(self._at)])

    def oldest(self) -> Row | None:
        found = self._first(0, math.inf)
        return None if found is None else self._at[found.position]

    def oldest_group(self) -> list[RowId]:
        """All ready rows of the oldest row's group."""
        oldest = self.oldest()
        if oldest is None:
            return []
        ready = [row_id for row_id in self._groups[oldest.group] if row_id in self._rows]
        return sorted(ready, key=self._position)

    def fitting(self, max_tokens: int, length: Length) -> list[RowId]:
        """As many as fit into `max_tokens` tokens, oldest first, and at least one: one that does not fit is passed
        over for smaller ones behind it."""
        self._measure(length)
        return self._fitting(self._first, max_tokens)

    def of_batch(self, batch: int) -> ReadyBatch:
        """Those of a batch. The consumer reads `batch`."""
        assert self._by_batch, "who asks for a batch must read `batch`"
        return ReadyBatch(self, batch)

    def add(self, row: Row) -> None:
        """It has become ready."""
        position = self._next
        self._next += 1
        self._arrived[row.row_id] = position
        self._insert(row, position)

    def take(self, row_id: RowId) -> Row:
        """It is ready no more."""
        row = self._rows.pop(row_id)
        position = self._arrived.pop(row_id, row_id)
        del self._at[position]
        batch = row.columns["batch"] if self._by_batch else None
        line = self._lines[batch]
        line.tokens -= line.fits.remove(position)
        line.rows -= 1
        if not line.rows:
            del self._lines[batch]
        return row

    def give_back(self, rows: Iterable[Row]) -> None:
        """They were leased, and are ready again."""
        arrived = [self.take(row_id) for row_id in tuple(self._arrived)]
        for row in (*arrived, *rows):
            self._insert(row, row.row_id)
            self._next = max(self._next, row.row_id + 1)

    def _insert(self, row: Row, position: int) -> None:
        self._rows[row.row_id] = row
        self._at[position] = row
        batch = row.columns["batch"] if self._by_batch else None
        line = self._lines.get(batch)
        if line is None:
            line = self._lines[batch] = _Line()
        tokens = 0 if self._length is None else self._length(row)
        line.fits.add(position, tokens)
        line.rows += 1
        line.tokens += tokens

    def _measure(self, length: Length) -> None:
        """Have every row's length by this function."""
        if length == self._length:
            return
        self._length = length
        self._lines.clear()
        for position, row in self._at.copy().items():
            self._insert(row, position)

    def _position(self, row_id: RowId) -> int:
        return self._arrived.get(row_id, row_id)

    def _first(self, start: int, limit: float) -> Found | None:
        """The first from a position on of at most so many tokens. Few batches have rows in the table at a time."""
        if len(self._lines) == 1:
            (line,) = self._lines.values()
            return line.fits.first(start, limit)
        found = (line.fits.first(start, limit) for line in self._lines.values())
        return min((one for one in found if one is not None), default=None)

    def _fitting(self, first: Callable[[int, float], Found | None], max_tokens: int) -> list[RowId]:
        chosen: list[RowId] = []
        room, found = max_tokens, first(0, math.inf)
        while found is not None:
            chosen.append(self._at[found.position].row_id)
            room -= found.value
            found = first(found.position + 1, room) if room > 0 else None
        return chosen


class ReadyBatch:
    """The ready rows of one batch."""

    def __init__(self, ready: ReadyRows, batch: int) -> None:
        self._ready = ready
        self._batch = batch

    def __len__(self) -> int:
        line = self._line
        return 0 if line is None else line.rows

    def __iter__(self) -> Iterator[Row]:
        """Oldest first."""
        line, start = self._line, 0
        while line is not None and (found := line.fits.first(start)) is not None:
            yield self._ready._at[found.position]
            start = found.position + 1

    def tokens(self, length: Length) -> int:
        """Of all."""
        self._ready._measure(length)
        line = self._line
        return 0 if line is None else line.tokens

    def fitting(self, max_tokens: int, length: Length) -> list[RowId]:
        """See `ReadyRows.fitting`."""
        self._ready._measure(length)
        line = self._line
        return [] if line is None else self._ready._fitting(line.fits.first, max_tokens)

    @property
    def _line(self) -> _Line | None:
        return self._ready._lines.get(self._batch)
