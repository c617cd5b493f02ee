"""A real run that all trackers follow which are installed, killed after its third batch and resumed."""

from __future__ import annotations

import fcntl
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

from headrace.observe.run_record import RunRecord, RunWatcher
from headrace.observe.summary import build_summary
from headrace.observe.trackers.names import batch_values, evaluation_values
from headrace.observe.trackers.position import Position
from headrace.store import RunReader

BATCHES, COMMITTED, KILLED_AFTER = 4, 2, 3
_KILLED = f"""
import os, sys
from headrace.cli.main import main
from headrace.controller.recorder import Recorder
batch = Recorder.batch
def ends(self, step):
    batch(self, step)
    if step.batch == {KILLED_AFTER - 1}:
        os._exit(9)
Recorder.batch = ends
main(sys.argv[1:])
"""
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
    job, folder = make_job(home / "job", trainer__batches=BATCHES, track=track), home / "run"
    environment = {**os.environ, "TRACKIO_DIR": str(home / "trackio")}

    def train(program: str, code: int, *more: str) -> None:
        command = [sys.executable, "-c", program, "train", str(job), "--dir", str(folder), *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment, cwd=home)
        assert done.returncode == code, done.stderr

    train(_KILLED, 9)
    for section in track:
        kind = section if isinstance(section, str) else section["type"]
        with (folder / "trackers" / f"{kind}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # its process ends by itself
    killed = read(folder)
    train(_WHOLE, 0, "--resume")
    with RunReader(folder) as reader:
        told = [event.data["message"] for event in reader.events.read() if event.kind.startswith("tracker")]
        record = RunWatcher(reader).read()
    assert told == [], told
    config = yaml.safe_load((folder / "config.yaml").read_text())
    return Tracked(folder, home, record, killed, build_summary(record), config)
