"""Who is told, in the trainer's own process, of what an offline trainer records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.observe.offline.record import HeldOutRows, OfflineStep


@dataclass(frozen=True, slots=True)
class OfflineListeners:
    """Each is called on the trainer's thread, once what it tells of is recorded. None may raise."""

    step: Callable[[OfflineStep], None] = lambda step: None
    evaluation: Callable[[HeldOutRows], None] = lambda found: None
    checkpoint: Callable[[int, Path], None] = lambda number, folder: None
    """Steps that are done; and the folder whose `model` is whole: the checkpoint's, or in the end the output's."""


NOBODY = OfflineListeners()
