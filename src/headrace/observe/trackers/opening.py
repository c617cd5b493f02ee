"""From a tracker's section to the tracker: its library is imported here, and nowhere else."""

from __future__ import annotations

from pathlib import Path

from headrace.config.track import (
    CsvTracker,
    MlflowTracker,
    TensorboardTracker,
    TrackerSection,
    TrackioTracker,
    WandbTracker,
)
from headrace.observe.trackers.protocol import TrackedRun, Tracker


def open_tracker(section: TrackerSection, run: TrackedRun) -> Tracker:
    """Raises whatever its library does."""
    match section:
        case CsvTracker():
            from headrace.observe.trackers import csv

            return csv.CsvFiles(run, _folder(section.folder, run))
        case TensorboardTracker():
            from headrace.observe.trackers import tensorboard

            return tensorboard.TensorboardEvents(run, _folder(section.folder, run))
        case WandbTracker():
            from headrace.observe.trackers import wandb

            return wandb.WandbRun(run, section)
        case MlflowTracker():
            from headrace.observe.trackers import mlflow

            return mlflow.MlflowRun(run, section)
        case TrackioTracker():
            from headrace.observe.trackers import trackio

            return trackio.TrackioRun(run, section)


def _folder(given: str | None, run: TrackedRun) -> Path:
    return run.folder if given is None else Path(given)
