"""How far a tracker has come: a small file beside its own, so that it goes on with the same run after a restart."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.store.media.files import write_whole


@dataclass(frozen=True, slots=True)
class Position:
    tracker_id: str | None = None
    """What the tracker calls its run; None before it was opened once."""
    entry: int = 0
    """The last entry of the record that was logged."""
    step: int = -1
    """The highest step that was logged."""

    @staticmethod
    def read(path: Path) -> Position:
        """The beginning where there is no such file. Raises ValueError where it holds something else."""
        if not path.exists():
            return Position()
        try:
            return Position(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is damaged: remove it, and the tracker begins a run of its own anew") from error

    def write(self, path: Path) -> None:
        """Whole or not at all. Raises StoreError."""
        write_whole(path, json.dumps(asdict(self)).encode())
