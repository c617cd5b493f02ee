"""What a tracker is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Cell = str | float | None


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What a tracker is told of the run when it is opened."""

    name: str
    """The last part of the run's folder."""
    key: str
    """Of this run alone, on whichever machine; it stays when the run is resumed."""
    folder: Path
    """For the tracker's own files, within the run's folder; it exists."""
    parameters: Mapping[str, Any]
    """The run's config, as sections in sections."""
    id: str | None
    """What the tracker called its run when it was opened before; None the first time."""


class Tracker(Protocol):
    """Where metrics go. Whatever it raises ends it, and nothing else.

    A step is a number of trained batches: the batch that made version n has step n, and so has an evaluation of version
    n. Steps of batches rise; an evaluation may come after batches of later steps. `at` is when the record was written,
    in seconds since the epoch; metrics are named as in `headrace.observe.trackers.names`.
    """

    @property
    def id(self) -> str:
        """What the tracker calls its run: given back when it is opened again."""

    def rewind(self, step: int) -> None:
        """What was logged of later steps no longer counts: a restore took it back, or it may be logged again. Called
        once after each opening with an `id`, and when the run goes back."""

    def batch(self, step: int, at: float, values: Mapping[str, float]) -> None: ...

    def evaluation(self, step: int, at: float, values: Mapping[str, float]) -> None: ...

    def samples(self, step: int, at: float, rows: Sequence[Mapping[str, Cell]]) -> None:
        """A table; all rows have the same columns. Its text is a model's: shown, never interpreted."""

    def flush(self) -> None:
        """What was logged outlives this process."""

    def close(self, status: str, summary: Mapping[str, Any]) -> None:
        """The run is over for now. `status` as in `RunRecord`; `summary` as in summary.json."""
