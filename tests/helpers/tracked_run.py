"""A real run that all trackers follow which are installed, killed after its third batch and resumed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from controller_jobs import make_job
from killed_run import run_killed

from headrace.observe.run_record import RunRecord, RunWatcher
from headrace.observe.summary import build_summary
from headrace.observe.trackers.names import batch_values, evaluation_values
from headrace.observe.trackers.position import Position
from headrace.store import RunReader

BATCHES, COMMITTED, KILLED_AFTER = 4, 2, 3
_WHOLE = "import sys; from headrace.cli.main import main; sys.exit(main(sys.argv[1:]))"


@dataclass(frozen=True)
class Tracked:
    folder: Path
    """Of the run."""
    home: Path
    """Where MLflow and Trackio keep theirs."""
    record: RunRecord
    killed: RunRecord
    """As it was when the run was killed."""
    summary: dict[str, Any]
    config: dict[str, Any]

    @property
    def batches(self) -> dict[int, dict[str, float]]:
        """What trackers should have, by step."""
        return {batch.batch + 1: batch_values(batch) for batch in self.record.batches}

    @property
    def taken_back(self) -> dict[int, dict[str, float]]:
        return {batch.batch + 1: batch_values(batch) for batch in self.killed.batches if batch.batch >= COMMITTED}

    @property
    def evaluations(self) -> dict[int, dict[str, float]]:
        return {evaluation.number: evaluation_values(evaluation) for evaluation in self.record.evaluations}

    def id(self, tracker: str) -> str:
        known = Position.read(self.folder / "trackers" / f"{tracker}.json").tracker_id
        assert known is not None
        return known

    @property
    def uri(self) -> str:
        return f"sqlite:///{self.home}/mlflow.db"


def read(folder: Path) -> RunRecord:
    with RunReader(folder) as reader:
        return RunWatcher(reader).read()


@cache
def make(home: Path) -> Tracked:
    sections: list[Any] = [
        "csv",
        {"type": "tensorboard"},
        {"type": "wandb", "mode": "offline", "project": "p", "tags": ["t"], "group": "g"},
        {"type": "mlflow", "uri": f"sqlite:///{home}/mlflow.db", "experiment": "e"},
        {"type": "trackio", "project": "p"},
    ]
    track = [s for s in sections if s == "csv" or find_spec(s["type"]) is not None]
    given = {"trainer__batches": BATCHES, "checkpoint__background": False, "track": track}
    job, folder = make_job(home / "job", **given), home / "run"
    kinds = [section if isinstance(section, str) else section["type"] for section in track]
    command = ["train", str(job), "--dir", str(folder)]
    run_killed(command, folder, after=KILLED_AFTER, trackers=kinds, home=home)
    killed = read(folder)
    done = subprocess.run(
        [sys.executable, "-c", _WHOLE, *command, "--resume"],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "TRACKIO_DIR": str(home / "trackio")},
        cwd=home,
    )
    assert done.returncode == 0, done.stderr
    with RunReader(folder) as reader:
        told = [event.data["message"] for event in reader.events.read() if event.kind.startswith("tracker")]
        record = RunWatcher(reader).read()
    assert told == [], told
    config = yaml.safe_load((folder / "config.yaml").read_text())
    return Tracked(folder, home, record, killed, build_summary(record), config)
