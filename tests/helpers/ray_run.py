"""Whole runs whose workers are actors of a Ray of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
from controller_jobs import make_job

from headrace.store import RunReader

Run = subprocess.Popen[str]


def command(folder: Path, *overrides: str, batches: int = 16, **job: object) -> tuple[list[str], Path]:
    """Of a run of a small model, and its folder."""
    config = job_config(folder, batches, **job)
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


def job_config(folder: Path, batches: int, **job: object) -> Path:
    return make_job(
        folder / "job",
        trainer__batches=batches,
        async__max_staleness=2,
        rollout__sampling__max_new_tokens=16,
        runtime__kind="ray",
        rollout__workers=2,
        **job,
    )


def begun(
    folder: Path, *overrides: str, environment: Mapping[str, str] | None = None, **job: object
) -> tuple[Run, Path]:
    line, run = command(folder, *overrides, **job)
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment), run


def below(process: Run) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def actor(process: Run, run: Path, name: str) -> psutil.Process:
    """The process of a worker, as engine-0."""
    (only,) = actors(process, run, name)
    return only


def actors(process: Run, run: Path, name: str) -> list[psutil.Process]:
    """Those below `process` that are a worker: what it prints goes to its log."""
    log = str(run / "logs" / f"{name}.log")
    found = []
    for each in below(process):
        try:
            if os.readlink(f"/proc/{each.pid}/fd/1") == log:
                found.append(each)
        except OSError:
            continue
    return found


def of_run(process: Run, run: Path) -> list[psutil.Process]:
    """All of a run that works in a Ray of this process: the command, its workers, and what these started."""
    found, workers = {psutil.Process(process.pid), *below(process)}, 0
    for each in psutil.Process().children(recursive=True):
        with suppress(OSError, psutil.NoSuchProcess):
            if Path(os.readlink(f"/proc/{each.pid}/fd/1")).parent == run / "logs":
                found |= {each, *each.children(recursive=True)}
                workers += 1
    assert workers
    return [*found]


def require_whole(run: Path, batches: int) -> Counter[str]:
    """All batches, none staler than it may be, nothing lost or counted twice. The kinds of events."""
    with RunReader(run) as reader:
        reader.counts().check()
        records = [row.record for row in reader.metrics.read("batch")]
        kinds = Counter(event.kind for event in reader.events.read())
    assert [record["batch"] for record in records] == [*range(batches)]
    assert max(int(stale) for record in records for stale in record["staleness"]) <= 2
    assert not any(record["failed_samples"] for record in records)
    return kinds


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that are there still after so long."""
    end = time.monotonic() + seconds
    while left := [each for each in processes if lives(each)]:
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    return left
