"""Rows as JSON text in a file, found by their offsets: a JSONL file as it is, or a temporary copy of another format."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
import weakref
from array import array
from typing import IO, Any

from headrace.config import ConfigError
from headrace.experience.sources.rows import Row, name_row
from headrace.experience.text.strict_json import finite, refuse_constant

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def no_room(where: str, error: OSError) -> ConfigError:
    """What to raise where the copy of a source cannot be written."""
    why = "its disk is full" if error.errno in _FULL else error.strerror or str(error)
    return ConfigError(
        f"cannot unpack {where} into {tempfile.gettempdir()}: {why}; make room there, or set TMPDIR to a folder "
        "on a larger disk"
    )


def temporary_file(where: str) -> IO[bytes]:
    """A file without a name: it is gone with the process that holds it, however that ends."""
    try:
        return tempfile.TemporaryFile(prefix="headrace-data-")
    except OSError as error:
        raise no_room(where, error) from error


def close_with(owner: object, file: IO[bytes]) -> None:
    """The file is closed once nobody has its owner any more."""
    weakref.finalize(owner, _close, file)


def _close(file: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # what a full disk refused to take is not wanted any more
        file.close()


class JsonRows:
    """Rows of JSON text; 16 bytes of memory each."""

    def __init__(self, file: IO[bytes], where: str, unit: str, *, is_copy: bool) -> None:
        """`is_copy`: the file is ours alone; otherwise it must stay as it is while rows are read."""
        self.where = where
        self.unit = unit
        self._file = file
        close_with(self, file)
        self._is_copy = is_copy
        self._starts, self._lengths = array("q"), array("q")
        self._numbers: array[int] | None = None
        """Unless they are 1, 2, 3, …"""
        self._end = 0
        self._stamp = _stamp(file)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Row:
        text = os.pread(self._file.fileno(), self._lengths[index], self._starts[index])
        if not self._is_copy and _stamp(self._file) != self._stamp:
            raise ConfigError(
                f"{self.where} was changed while it is in use; put it back as it was, and --resume the run, or begin "
                "again with --fresh"
            )
        return parse_row(text, name_row(self.where, self.unit, self.number(index)))

    def number(self, index: int) -> int:
        return index + 1 if self._numbers is None else self._numbers[index]

    def found(self, start: int, length: int, number: int) -> None:
        """The next row is there in the file."""
        if self._numbers is None and number != len(self._starts) + 1:
            self._numbers = array("q", range(1, len(self._starts) + 1))
        if self._numbers is not None:
            self._numbers.append(number)
        self._starts.append(start)
        self._lengths.append(length)

    def append(self, text: bytes, number: int) -> None:
        """Write the next row into a copy."""
        try:
            self._file.write(text)
        except OSError as error:
            raise no_room(self.where, error) from error
        self.found(self._end, len(text), number)
        self._end += len(text)

    def flush(self) -> None:
        """All that was appended can be read."""
        try:
            self._file.flush()
        except OSError as error:
            raise no_room(self.where, error) from error


def parse_row(text: bytes, where: str) -> Row:
    """Raises ConfigError naming `where`."""
    try:
        row = json.loads(
            text.decode(), object_pairs_hook=whole_object, parse_constant=refuse_constant, parse_float=finite
        )
        if b"\\u" in text:  # only an escape can smuggle in half a surrogate pair, which no tokenizer takes
            json.dumps(row, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        begin = text.strip()[:60].decode(errors="replace")
        raise ConfigError(f"{where} is not JSON ({error}): {begin!r}; write one JSON object a line") from error
    if not isinstance(row, dict):
        raise ConfigError(f"{where} is a JSON {json_type(row)}; write an object, as {{'prompt': ...}}")
    return row


def whole_object(pairs: list[tuple[str, Any]]) -> Row:
    """Raises ValueError where a key is there twice."""
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it has {next(name for name in row if names.count(name) > 1)!r} twice")
    return row


def json_type(value: Any) -> str:
    names = {"dict": "object", "list": "list", "str": "string", "bool": "boolean", "NoneType": "null"}
    return names.get(type(value).__name__, "number")


def _stamp(file: IO[bytes]) -> tuple[int, int]:
    stat = os.fstat(file.fileno())
    return stat.st_size, stat.st_mtime_ns
