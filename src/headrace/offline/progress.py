"""How far an offline run is: beside the trainer's state in its checkpoint."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from headrace.config.reading.changes import describe_changes
from headrace.store import ConfigMismatch, RunDamaged, StoreError
from headrace.training.protocol import StepReport

_FILE = "progress.json"
_FORMAT = 3
"""Of the whole checkpoint; before 3 it had no manifest."""


@dataclass(frozen=True, slots=True)
class Progress:
    steps: int = 0
    """Done."""
    first_loss: float = 0.0
    last_loss: float = 0.0
    skipped_steps: int = 0
    """Steps whose gradient was not finite: the weights stayed."""
    tokens: int = 0
    """Forwarded: prompts and responses."""
    trained_tokens: int = 0
    wall_s: float = 0.0
    """Of training alone."""

    def after(self, report: StepReport, wall_s: float) -> Progress:
        """One step more, `wall_s` after the start."""
        return replace(
            self,
            steps=self.steps + 1,
            first_loss=self.first_loss if self.steps else report.loss,
            last_loss=report.loss,
            skipped_steps=self.skipped_steps + report.skipped,
            tokens=self.tokens + report.forwarded_tokens,
            trained_tokens=self.trained_tokens + report.trained_tokens,
            wall_s=wall_s,
        )


@dataclass(frozen=True, slots=True)
class Made:
    """What a run is made from."""

    config_sha256: str
    config_yaml: str
    data_sha256: str


def write_progress(folder: Path, progress: Progress, made: Made) -> None:
    record = {"format": _FORMAT, **asdict(made), **asdict(progress)}
    (folder / _FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def read_progress(folder: Path, made: Made) -> Progress:
    """Raises ConfigMismatch if it is of another config or other data, RunDamaged if it cannot be read, StoreError if
    its format is another one."""
    path = folder / _FILE
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] != _FORMAT:
            raise StoreError(
                f"{folder} has format {record['format']}, this headrace goes on from format {_FORMAT}: continue the "
                "run with the headrace that made it, or begin again with --fresh"
            )
        before = Made(**{field.name: str(record[field.name]) for field in fields(Made)})
        progress = Progress(**{field.name: record[field.name] for field in fields(Progress)})
        if not all(isinstance(value, int | float) for value in asdict(progress).values()):
            raise ValueError("its values are not numbers")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunDamaged(f"{path} cannot be read ({error}); begin again with --fresh") from error
    if before.config_sha256 != made.config_sha256:
        raise ConfigMismatch(
            f"{folder} was made with another config{describe_changes(before.config_yaml, made.config_yaml)}\n"
            "resume with that one, begin again with --fresh, or give another --dir"
        )
    if before.data_sha256 != made.data_sha256:
        raise ConfigMismatch(
            f"{folder} was made from other data than there is now; resume with the same, or begin again with --fresh"
        )
    return progress
