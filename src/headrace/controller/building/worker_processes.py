"""Worker processes of a run: whether it has any, and where."""

from __future__ import annotations

from pathlib import Path

from headrace.config import TrainConfig
from headrace.controller.building.processors import process_count
from headrace.runtime.process.processes import Processes


def worker_processes(config: TrainConfig, folder: Path | None, rollouts: int = 0) -> Processes | None:
    """Where a run has its worker processes; None if it has none. `rollouts`: workers that play them. What they print is
    in `logs/` of `folder`, the run's, or on stderr if it has none."""
    if not (process_count(config) or rollouts or config.functions_process):
        return None
    return Processes(str(folder or ""), logs=None if folder is None else folder / "logs")
