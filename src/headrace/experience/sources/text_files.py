"""Readers of JSONL, JSON and CSV files, also packed ones."""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from headrace.config import ConfigError
from headrace.experience.sources.compressed import is_compressed, uncompressed
from headrace.experience.sources.rows import Row, Survey, name_row
from headrace.experience.sources.spool import (
    JsonRows,
    json_type,
    parse_row,
    temporary_file,
    whole_object,
)
from headrace.experience.text.strict_json import finite, refuse_constant

_CHUNK = 1 << 20
_LONGEST_ROW = 1 << 26
"""Characters of an element of a JSON list."""
_LONGEST_CELL = 2**31 - 1
_MARK = codecs.BOM_UTF8
_MAGIC = {
    b"PAR1": "Parquet (.parquet)",
    b"ARROW1": "Arrow (.arrow)",
    b"\x1f\x8b": "gzip (.gz)",
    b"\x28\xb5\x2f\xfd": "Zstandard (.zst)",
}


def read_jsonl(file: Path, survey: Survey) -> JsonRows:
    """One object a line; blank lines are passed over. The file itself is read, unless it is packed: then a copy."""
    if is_compressed(file):
        with uncompressed(file) as stream:
            return _read_lines(file, stream, survey)
    rows = JsonRows(_opened(file), str(file), "line", is_copy=False)
    with uncompressed(file) as stream:
        for start, number, line in _lines(file, stream):
            survey.row(name_row(rows.where, "line", number), number, parse_row(line, f"{file}, line {number}"))
            rows.found(start, len(line), number)
    return rows


def read_json(file: Path, survey: Survey) -> JsonRows:
    """A list of objects, of which one is in memory at a time; or one object a line."""
    with uncompressed(file) as stream:
        head = _first_character(file, stream)
    if head == b"{":
        return read_jsonl(file, survey)
    if head not in (b"[", b""):
        raise ConfigError(f"{file} begins with {head.decode(errors='replace')!r}; write a list of objects: [{{...}}]")
    rows = JsonRows(temporary_file(str(file)), str(file), "row", is_copy=True)
    with uncompressed(file) as stream:
        for number, (text, row) in enumerate(_elements(file, stream), start=1):
            survey.row(name_row(rows.where, "row", number), number, row)
            rows.append(text.encode(), number)
    rows.flush()
    return rows


def read_csv(file: Path, survey: Survey, delimiter: str = ",") -> JsonRows:
    """The first line names the columns. Every value is text; an empty cell is null."""
    rows = JsonRows(temporary_file(str(file)), str(file), "row", is_copy=True)
    csv.field_size_limit(_LONGEST_CELL)  # of the process; a prompt may be longer than the library's 128 KiB
    with uncompressed(file) as stream:
        number = 0
        try:
            cells = csv.reader(io.TextIOWrapper(stream, "utf-8-sig", newline=""), delimiter=delimiter, strict=True)
            header = _header(file, next(cells, []))
            for line in cells:
                if not line:
                    continue
                number += 1
                where = name_row(rows.where, "row", number)
                if len(line) != len(header):
                    raise ConfigError(
                        f"{where} (line {cells.line_num}) has {len(line)} cells, and the header {len(header)} columns; "
                        "put cells that hold a separator or a line break in quotes"
                    )
                row: Row = {name: cell or None for name, cell in zip(header, line, strict=True)}
                survey.row(where, number, row)
                rows.append(json.dumps(row, ensure_ascii=False).encode(), number)
        except (csv.Error, UnicodeError) as error:
            raise ConfigError(
                f"{file}, row {number + 1} is no CSV ({error}); write UTF-8, with quotes closed"
            ) from error
    rows.flush()
    return rows


def _read_lines(file: Path, stream: IO[bytes], survey: Survey) -> JsonRows:
    rows = JsonRows(temporary_file(str(file)), str(file), "line", is_copy=True)
    for _, number, line in _lines(file, stream):
        where = name_row(rows.where, "line", number)
        survey.row(where, number, parse_row(line, where))
        rows.append(line, number)
    rows.flush()
    return rows


def _opened(file: Path) -> IO[bytes]:
    try:
        return file.open("rb")
    except OSError as error:
        raise ConfigError(f"cannot read the dataset {file}: {error.strerror}; give a readable file") from error


def _lines(file: Path, stream: IO[bytes]) -> Iterator[tuple[int, int, bytes]]:
    """(offset, number, line) of each line that is not blank."""
    start = 0
    for number, line in enumerate(stream, start=1):
        content = line
        if number == 1:
            _refuse_binary(file, line)
            content = line.removeprefix(_MARK)
        if content.strip():
            yield start + len(line) - len(content), number, content
        start += len(line)


def _refuse_binary(file: Path, begin: bytes) -> None:
    for magic, what in _MAGIC.items():
        if begin.startswith(magic):
            raise ConfigError(f"{file} is a file of another kind by its content, {what}; give it that suffix")


def _first_character(file: Path, stream: IO[bytes]) -> bytes:
    begin = stream.read(_CHUNK)
    _refuse_binary(file, begin)
    return begin.removeprefix(_MARK).lstrip()[:1]


def _elements(file: Path, stream: IO[bytes]) -> Iterator[tuple[str, Row]]:
    """The objects of a list, each with its text."""
    decoder = json.JSONDecoder(object_pairs_hook=whole_object, parse_constant=refuse_constant, parse_float=finite)
    text = io.TextIOWrapper(stream, "utf-8-sig", newline="")
    number, buffer, place = 0, "", 0
    ended = False

    def more() -> bool:
        nonlocal buffer, place, ended
        try:
            chunk = text.read(max(_CHUNK, len(buffer) - place))
        except UnicodeError as error:
            raise ConfigError(f"{file}, near row {number + 1} is not UTF-8 ({error}); write UTF-8 text") from error
        buffer, place = buffer[place:] + chunk, 0
        ended = not chunk
        return not ended

    def skip() -> str:
        """The next character that is no space; nothing at the end."""
        nonlocal place
        while True:
            while place < len(buffer) and buffer[place] in " \t\r\n":
                place += 1
            if place < len(buffer):
                return buffer[place]
            if not more():
                return ""

    def expect(allowed: str, after: str) -> str:
        nonlocal place
        found = skip()
        if not found or found not in allowed:
            raise ConfigError(
                f"{file}: {after} comes {found!r}, and no {' or '.join(allowed)}; write a whole list of objects, or "
                "one object a line in a .jsonl file"
            )
        place += 1
        return found

    if not skip():
        return
    expect("[", "first")
    if skip() == "]":
        return
    while True:
        skip()
        where = f"{file}, row {number + 1}"
        while True:
            try:
                row, end = decoder.raw_decode(buffer, place)
                break
            except (ValueError, RecursionError) as error:
                if len(buffer) - place > _LONGEST_ROW or not more():
                    begin = buffer[place : place + 60]
                    raise ConfigError(f"{where} is not JSON ({error}): {begin!r}; write a list of objects") from error
        if not isinstance(row, dict):
            raise ConfigError(f"{where} is a JSON {json_type(row)}; write an object, as {{'prompt': ...}}")
        element = buffer[place:end]
        if "\\u" in element:
            parse_row(element.encode(), where)
        number, place = number + 1, end
        yield element, row
        if expect(",]", f"after row {number}") == "]":
            if skip():
                raise ConfigError(f"{file} goes on after the end of its list; write one list")
            return


def _header(file: Path, names: list[str]) -> list[str]:
    if not names or not all(names):
        raise ConfigError(f"{file} has no name for each column in its first line; write them there")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{file} has two columns {twice!r}; rename one")
    return names
