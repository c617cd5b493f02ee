"""Whole runs whose engine is a server, and what its death costs them."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from controller_jobs import make_job, make_model, start
from forked import Forked
from ray_run import gone

from headrace.store import RunReader

BATCHES, ETA = 24, 2
_WAIT_S = 290.0
_NAME_S = 60.0

Run = Forked
SHARED = Path("/dev/shm")


def begun(tmp_path: Path, **job: object) -> tuple[Run, Path]:
    """A run of a small model, and its folder."""
    settings: dict[str, object] = {
        "trainer__batches": BATCHES,
        "async__max_staleness": ETA,
        "rollout__sampling__max_new_tokens": 24,
        "engine__start_deadline_s": 240,
    }
    config = make_job(tmp_path / "job", **{**settings, **job})
    make_model(tmp_path / "job" / "model", "qwen3_wide")
    run = tmp_path / "run"
    return start("train", config, "--dir", run, "--plain"), run


def ended_well(process: Run, run: Path, out: str) -> list[dict[str, Any]]:
    """The records of the batches of a run that ended in order, within the law, with no sample failed; `out` is what it
    printed."""
    assert process.returncode == 0, out[-3000:]
    with RunReader(run) as reader:
        reader.counts().check()
        records = [row.record for row in reader.metrics.read("batch")]
    assert not any(record["failed_samples"] for record in records)
    return records


def until_batch(run: Path, batch: int, process: Run) -> None:
    end = time.monotonic() + _WAIT_S
    while time.monotonic() < end and process.poll() is None:
        if (run / "run.db").exists():
            with RunReader(run) as reader:
                if len(list(reader.metrics.read("batch"))) >= batch:
                    return
        time.sleep(0.2)
    pytest.fail(f"batch {batch} did not come: {process.communicate()[0][-2000:] if process.poll() is not None else ''}")


def until_event(run: Path, kind: str, process: Run) -> None:
    end = time.monotonic() + _WAIT_S
    while time.monotonic() < end and process.poll() is None:
        with RunReader(run) as reader:
            if any(event.kind == kind for event in reader.events.read()):
                return
        time.sleep(0.2)
    pytest.fail(f"there was no {kind}: {process.communicate()[0][-2000:] if process.poll() is not None else ''}")


def below(process: Run) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def of_name(process: Run, words: str) -> psutil.Process:
    """The one below it that has `words` in its command, once it is there: one that died may be on its way again."""
    end = time.monotonic() + _NAME_S
    while time.monotonic() < end:
        for each in below(process):
            with suppress(psutil.NoSuchProcess):
                if words in " ".join([each.name(), *each.cmdline()]):
                    return each
        time.sleep(0.05)
    pytest.fail(f"there is no {words!r} below the run")


def guardian_of(process: Run, server: str) -> psutil.Process:
    """Of the server whose command begins with this module."""
    found = server_of(process, server).parent()
    assert found is not None
    return found


def server_of(process: Run, module: str) -> psutil.Process:
    for each in below(process):
        with suppress(psutil.NoSuchProcess):
            if each.cmdline()[1:3] == ["-m", module]:
                return each
    pytest.fail(f"there is no server {module} below the run")


def worker_of(process: Run) -> psutil.Process:
    return of_name(process, "engine/0")


def require_no_loss(process: Run, run: Path, victim: Callable[[Run], psutil.Process]) -> None:
    """Kills the victim once the run is on its way: the run ends as it would have, and nothing of it is left."""
    before: list[psutil.Process] = []
    shared = {*SHARED.glob("psm_*"), *SHARED.glob("sglang_*")}
    try:
        until_batch(run, 4, process)
        before = below(process)
        os.kill(victim(process).pid, signal.SIGKILL)
        out, _ = process.communicate(timeout=_WAIT_S)
    finally:
        process.kill()
    assert process.returncode == 0, out[-3000:]
    with RunReader(run) as reader:
        reader.counts().check()
        batches = [row.record for row in reader.metrics.read("batch")]
        kinds = Counter(event.kind for event in reader.events.read())
    assert len(batches) == BATCHES
    assert max(int(stale) for record in batches for stale in record["staleness"]) <= ETA
    assert not any(record["failed_samples"] for record in batches)
    assert kinds["engine_died"] == kinds["engine_back"] == 1
    end = time.monotonic() + _NAME_S  # other servers of this machine come and go
    while (left := {*SHARED.glob("psm_*"), *SHARED.glob("sglang_*")} - shared) and time.monotonic() < end:
        time.sleep(0.5)
    assert not left, "memory that its processes shared"
    assert not gone(before, 10.0)
