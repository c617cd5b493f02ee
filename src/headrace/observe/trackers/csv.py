"""CSV files: a row for each step, a column for each metric."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.observe.trackers.dotted import flat
from headrace.observe.trackers.folders import refuse_others
from headrace.observe.trackers.protocol import Cell, TrackedRun

_KEYS = ("step", "at")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula, or skips before it."""


class CsvFiles:
    """What a restore took back is removed from the files, and a step that is logged again replaces what was there."""

    def __init__(self, run: TrackedRun, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        refuse_others(run, folder, "batches.csv")
        self._folder = folder
        self._batches = _Table(folder / "batches.csv")
        self._evaluations = _Table(folder / "evaluations.csv")
        self._write_pairs("parameters.csv", run.parameters)

    @property
    def id(self) -> str:
        return str(self._folder)

    def rewind(self, step: int) -> None:
        self._batches.cut(step)
        self._evaluations.cut(step)
        for path in self._folder.glob("samples-*.csv"):
            number = path.stem.removeprefix("samples-")
            if number.isdecimal() and int(number) > step:
                path.unlink()

    def batch(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self._batches.add(step, at, values)

    def evaluation(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self._evaluations.add(step, at, values)

    def samples(self, step: int, at: float, rows: Sequence[Mapping[str, Cell]]) -> None:
        if rows:
            columns = list(rows[0])
            _replace(
                self._folder / f"samples-{step}.csv",
                [columns, *([_inert(row[name]) for name in columns] for row in rows)],
            )

    def flush(self) -> None:
        self._batches.flush()
        self._evaluations.flush()

    def close(self, status: str, summary: Mapping[str, Any]) -> None:
        self.flush()
        self._write_pairs("summary.csv", {**summary, "status": status})

    def _write_pairs(self, name: str, values: Mapping[str, Any]) -> None:
        _replace(self._folder / name, [["name", "value"], *(list(pair) for pair in flat(values).items())])


class _Table:
    """A file with a header, which grows by rows, and is written anew when it gets another column or loses rows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: list[str] = list(_KEYS)
        self._last = -1
        """The step of the last row."""
        self._new = io.StringIO()
        self._read()

    def add(self, step: int, at: float, values: Mapping[str, float]) -> None:
        """A row, or more columns of the last one: evaluations of several sets come one after another."""
        before: Mapping[str, str] = {}
        if step <= self._last:
            last = self._rows()[-1]
            known = {name: cell for name, cell in zip(self._columns, last, strict=False) if cell and name not in _KEYS}
            before = known if step == self._last and not known.keys() & values.keys() else {}
            self.cut(step - 1)
        missing = [name for name in values if name not in self._columns]
        if missing or not self._path.exists():
            rows = self._rows()
            self._columns += missing
            self._write(rows)
        told = {**before, **{name: repr(value) for name, value in values.items()}}
        row: dict[str, object] = {"step": step, "at": repr(at), **told}
        csv.writer(self._new).writerow([row.get(name, "") for name in self._columns])
        self._last = step

    def cut(self, step: int) -> None:
        """Remove the rows of later steps."""
        rows = self._rows()
        kept = [row for row in rows if int(row[0]) <= step]
        if len(kept) < len(rows):
            self._write(kept)
        self._last = int(kept[-1][0]) if kept else -1

    def flush(self) -> None:
        if text := self._new.getvalue():
            with self._path.open("a", encoding="utf-8", newline="") as file:
                file.write(text)
            self._new = io.StringIO()

    def _rows(self) -> list[list[str]]:
        self.flush()
        if not self._path.exists():
            return []
        with self._path.open(encoding="utf-8", newline="") as file:
            return list(csv.reader(file))[1:]

    def _write(self, rows: Sequence[Sequence[str]]) -> None:
        _replace(self._path, [self._columns, *([*row, *[""] * (len(self._columns) - len(row))] for row in rows)])

    def _read(self) -> None:
        """What an earlier process wrote, less the row that its end tore."""
        if not self._path.exists():
            return
        text = self._path.read_bytes()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            os.truncate(self._path, whole)
        with self._path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.reader(file))
        self._columns = lines[0] if lines else list(_KEYS)
        self._last = int(lines[-1][0]) if len(lines) > 1 else -1


def _inert(cell: Cell) -> Cell:
    """What a model wrote is untrusted: an apostrophe keeps a spreadsheet from computing it."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def _replace(path: Path, rows: Sequence[Sequence[object]]) -> None:
    """Whole or not at all."""
    beside = path.with_name(path.name + ".new")
    with beside.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    os.replace(beside, path)
