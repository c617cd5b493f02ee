"""Who is told, in the run's own process, of what it records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.observe.record import BatchRecord
from headrace.observe.run_record import Evaluation
from headrace.store.rollouts import Rollout


@dataclass(frozen=True, slots=True)
class Listeners:
    """Each is called in the run's event loop, once what it tells of is recorded. None may raise."""

    batch: Callable[[BatchRecord], None] = lambda batch: None
    evaluation: Callable[[Evaluation], None] = lambda evaluation: None
    checkpoint: Callable[[int, Path], None] = lambda number, folder: None
    """The number of the version that was committed, and the checkpoint's folder."""
    rollouts: Callable[[Sequence[Rollout]], None] = lambda rollouts: None
    """Those that the record keeps, as they are written."""


NOBODY = Listeners()
