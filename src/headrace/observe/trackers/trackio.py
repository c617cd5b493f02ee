"""Trackio."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import trackio

from headrace.config.track import TrackioTracker
from headrace.observe.trackers.dotted import flat
from headrace.observe.trackers.protocol import Cell, TrackedRun


class TrackioRun:
    """Trackio only adds: what a restore took back stays, on the branch that `run/branch` tells, and what is trained
    again stands at the same step, later."""

    def __init__(self, run: TrackedRun, section: TrackioTracker) -> None:
        self._is_local = section.space is None
        self._warned: list[str] = []
        warnings.showwarning = self._note
        self._name = run.id or f"{section.name or run.name}-{run.key}"
        self._last = 0
        self._run = trackio.init(
            project=section.project,
            name=self._name,
            space_id=section.space,
            config=flat(run.parameters),
            resume="never" if run.id is None else "must",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    @property
    def id(self) -> str:
        """Its name, by which Trackio finds it again."""
        return self._name

    def rewind(self, step: int) -> None:
        pass

    def batch(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self._last = step
        self._run.log(dict(values), step=step)

    def evaluation(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self.batch(step, at, values)

    def samples(self, step: int, at: float, rows: Sequence[Mapping[str, Cell]]) -> None:
        import pandas

        self._run.log({"samples": trackio.Table(dataframe=pandas.DataFrame(list(rows)))}, step=step)

    def flush(self) -> None:
        """Its own thread writes what was logged within half a second. Raises RuntimeError if it has told, by a warning
        only, that it could not; where a Space is out of reach it keeps the values, and sends them later."""
        if self._warned and self._is_local:
            raise RuntimeError(self._warned[0])

    def close(self, status: str, summary: Mapping[str, Any]) -> None:
        values = flat({"summary": {**summary, "status": status}}, "/")
        self._run.log({name: value for name, value in values.items() if value is not None}, step=self._last)
        self._run.finish()
        self.flush()

    def _note(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        """In the place of `warnings.showwarning`."""
        (file or sys.stderr).write(f"{category.__name__}: {message}\n")
        if str(message).startswith("trackio"):
            self._warned.append(str(message))
