"""Folders that trackers write to."""

from __future__ import annotations

from pathlib import Path

from headrace.observe.trackers.protocol import TrackedRun


def refuse_others(run: TrackedRun, folder: Path, pattern: str) -> None:
    """Raises FileExistsError where the files of another run are, which would be mixed with this one's."""
    if run.id is None and (found := next(folder.glob(pattern), None)) is not None:
        raise FileExistsError(f"{found} is another run's: give this one a folder of its own")
