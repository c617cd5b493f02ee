"""Whole runs whose workers are actors of a Ray of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
from controller_jobs import make_job

Run = subprocess.Popen[str]


def command(folder: Path, *overrides: str, batches: int = 16, **job: object) -> tuple[list[str], Path]:
    """Of a run of a small model, and its folder."""
    config = make_job(
        folder / "job",
        trainer__batches=batches,
        async__max_staleness=2,
        rollout__sampling__max_new_tokens=16,
        runtime__kind="ray",
        rollout__workers=2,
        **job,
    )
    run = folder / "run"
    return [
        sys.executable,
        "-m",
        "headrace.cli.main",
        "train",
        str(config),
        "--dir",
        str(run),
        "--plain",
        *overrides,
    ], run


def begun(folder: Path, *overrides: str, **job: object) -> tuple[Run, Path]:
    line, run = command(folder, *overrides, **job)
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True), run


def below(process: Run) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def actor(process: Run, run: Path, name: str) -> psutil.Process:
    """The process of a worker, as engine-0: what it prints goes to its log."""
    log = str(run / "logs" / f"{name}.log")
    found = []
    for each in below(process):
        try:
            if os.readlink(f"/proc/{each.pid}/fd/1") == log:
                found.append(each)
        except OSError:
            continue
    (only,) = found
    return only
