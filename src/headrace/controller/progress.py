"""How far an offline run is: beside the trainer's state in its checkpoint."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from headrace.store import ConfigMismatch, RunDamaged
from headrace.training.protocol import StepReport

_FILE = "progress.json"
_FORMAT = 1


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


def write_progress(folder: Path, progress: Progress, config_sha256: str, data_sha256: str) -> None:
    record = {"format": _FORMAT, "config_sha256": config_sha256, "data_sha256": data_sha256, **asdict(progress)}
    (folder / _FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def read_progress(folder: Path, config_sha256: str, data_sha256: str) -> Progress:
    """Raises ConfigMismatch if it is of another config or other data, RunDamaged if it cannot be read."""
    path = folder / _FILE
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] != _FORMAT:
            raise ValueError(f"its format is not {_FORMAT}")
        digest, data = record["config_sha256"], record["data_sha256"]
        progress = Progress(**{field.name: record[field.name] for field in fields(Progress)})
        if not all(isinstance(value, int | float) for value in asdict(progress).values()):
            raise ValueError("its values are not numbers")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunDamaged(f"{path} cannot be read ({error}); begin again with --fresh") from error
    if digest != config_sha256:
        raise ConfigMismatch(
            f"{folder} was made with another config; resume with that one, begin again with --fresh, or give another "
            "--dir"
        )
    if data != data_sha256:
        raise ConfigMismatch(
            f"{folder} was made from other data than there is now; resume with the same, or begin again with --fresh"
        )
    return progress
