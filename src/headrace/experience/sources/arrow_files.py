"""Readers of Parquet and Arrow files, through a temporary copy in small batches, of which one is read for each row."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.config import ConfigError
from headrace.experience.sources.arrow_batches import check_names, decoded, readable, rows_of
from headrace.experience.sources.rows import Row
from headrace.experience.sources.spool import close_with, no_room, temporary_file

if TYPE_CHECKING:
    import pyarrow as pa

Look = Callable[["pa.RecordBatch", int], None]
"""Given each batch, in order, and the index of its first row."""

_READ = 4096
"""Rows that are read, and looked at, together."""
_COPIED = 128
"""Rows of a batch of the copy: what is read for one row."""
_BUFFER = 1 << 20


class BatchRows:
    """Rows in the small batches of a copy."""

    unit = "row"

    def __init__(self, where: str) -> None:
        self.where = where
        self._file = temporary_file(where)
        close_with(self, self._file)
        self._starts: list[int] = []
        self._size = 0
        self._writer: Any = None
        self._reader: Any = None

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Row:
        if not 0 <= index < self._size:
            raise IndexError(f"row {index} of {self._size}")
        place = bisect_right(self._starts, index) - 1
        return rows_of(self._reader.get_batch(place).slice(index - self._starts[place], 1))[0]

    def number(self, index: int) -> int:
        return index + 1

    def append(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        try:
            if self._writer is None:
                self._writer = pa.ipc.new_file(pa.PythonFile(self._file, "w"), batch.schema)
            for start in range(0, batch.num_rows, _COPIED):
                part = batch.slice(start, _COPIED)
                self._writer.write_batch(part)
                self._starts.append(self._size)
                self._size += part.num_rows
        except OSError as error:
            raise no_room(self.where, error) from error

    def seal(self) -> None:
        """All that was appended can be read."""
        import pyarrow as pa

        if self._writer is None:
            return
        try:
            self._writer.close()
            self._file.flush()
        except OSError as error:
            raise no_room(self.where, error) from error
        self._reader = pa.ipc.open_file(pa.PythonFile(self._file, "r"))


def read_parquet(file: Path, look: Look) -> BatchRows:
    import_pyarrow(file)
    import pyarrow.parquet as pq

    with _in_words(file, "Parquet"), pq.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False) as source:
        schema = source.schema_arrow
        check_names(schema, str(file))
        return _copied(file, source.iter_batches(_READ, columns=readable(schema), use_threads=False), look)


def read_arrow(file: Path, look: Look) -> BatchRows:
    """Of the file or the stream format, also packed in itself."""
    import_pyarrow(file)
    import pyarrow as pa

    with _in_words(file, "Arrow"), pa.memory_map(str(file)) as raw:
        try:
            source: Any = pa.ipc.open_file(raw)
            batches: Iterator[Any] = (source.get_batch(place) for place in range(source.num_record_batches))
        except pa.ArrowInvalid:
            raw.seek(0)
            source = pa.ipc.open_stream(raw)
            batches = iter(source)
        check_names(source.schema, str(file))
        columns = readable(source.schema)
        return _copied(file, (part for batch in batches for part in _parts(batch.select(columns))), look)


def import_pyarrow(where: object) -> None:
    """Raises ConfigError where it is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"{where} needs the package pyarrow, which is not installed; pip install 'headrace[datasets]'"
        ) from error


def _copied(file: Path, batches: Iterator[Any], look: Look) -> BatchRows:
    rows = BatchRows(str(file))
    for batch in batches:
        look(batch, len(rows))
        rows.append(decoded(batch))
    rows.seal()
    return rows


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, _READ):
        yield batch.slice(start, _READ)


@contextmanager
def _in_words(file: Path, kind: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError) as error:
        why = " ".join(str(error).split())
        raise ConfigError(
            f"{file} is no {kind} file, or is damaged ({why[:200]}); fetch or write it again, or give it the suffix "
            "of what it is"
        ) from error
