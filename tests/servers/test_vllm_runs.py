"""Whole runs whose engine is vLLM, and what its death costs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from controller_jobs import make_job, make_model
from vllm_server import PYTHON, needs_vllm

from headrace.store import RunReader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), needs_vllm]
BATCHES, ETA = 24, 2
_WAIT_S = 290.0


def begun(tmp_path: Path, **job: object) -> tuple[subprocess.Popen[str], Path]:
    config = make_job(
        tmp_path / "job",
        trainer__batches=BATCHES,
        async__max_staleness=ETA,
        rollout__sampling__max_new_tokens=24,
        engine__kind="vllm",
        engine__python=PYTHON,
        engine__args={"skip_tokenizer_init": True},
        engine__start_deadline_s=240,
        **job,
    )
    make_model(tmp_path / "job" / "model", "qwen3_wide")
    run = tmp_path / "run"
    command = [sys.executable, "-m", "headrace.cli.main", "train", str(config), "--dir", str(run), "--plain"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True), run


def until_batch(run: Path, batch: int, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + _WAIT_S
    while time.monotonic() < end and process.poll() is None:
        if (run / "run.db").exists():
            with RunReader(run) as reader:
                if len(list(reader.metrics.read("batch"))) >= batch:
                    return
        time.sleep(0.2)
    pytest.fail(f"batch {batch} did not come: {process.communicate()[0][-2000:] if process.poll() is not None else ''}")


def below(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def core_of(process: subprocess.Popen[str]) -> psutil.Process:
    return next(each for each in below(process) if "EngineCore" in " ".join([each.name(), *each.cmdline()]))


def server_of(process: subprocess.Popen[str]) -> psutil.Process:
    return next(each for each in below(process) if each.cmdline()[1:3] == ["-m", "vllm.entrypoints.openai.api_server"])


def guardian_of(process: subprocess.Popen[str]) -> psutil.Process:
    found = server_of(process).parent()
    assert found is not None
    return found


def worker_of(process: subprocess.Popen[str]) -> psutil.Process:
    return next(each for each in below(process) if "engine/0" in " ".join(each.cmdline()))


@pytest.mark.parametrize("victim", [core_of, server_of, guardian_of, worker_of])
def test_its_death_costs_the_run_nothing(tmp_path: Path, victim: object) -> None:
    process, run = begun(tmp_path)
    before: list[psutil.Process] = []
    try:
        until_batch(run, 4, process)
        before = below(process)
        assert callable(victim)
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
    assert not [each for each in before if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
