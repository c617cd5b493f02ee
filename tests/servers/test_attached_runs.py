"""Runs, evaluations and recordings whose engine is a vLLM server that somebody else has started."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from controller_jobs import make_job, make_model
from outside_vllm import ARCHITECTURE, OutsideVllm
from served_run import BATCHES, ETA, begun, until_batch, until_event
from vllm_server import needs_vllm

from headrace.cli.main import main
from headrace.observe.run_record import RunWatcher
from headrace.store import RunReader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), needs_vllm]
GAP = 1e-4
"""Nats a token, of equal weights in float32; the server's own are 0.01 and more apart."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutsideVllm]:
    made = OutsideVllm(tmp_path_factory.mktemp("outside"))
    made.start()
    try:
        made.until_up()
        yield made
    finally:
        made.kill()


def test_an_evaluation_and_a_recording_are_of_the_configs_model(
    server: OutsideVllm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though nobody trains, and the server was started with another's weights."""
    attached = {"engine__kind": "vllm", "engine__url": server.url, "engine__max_concurrent_sequences": 8}
    job = make_job(tmp_path / "job", **attached)
    make_model(tmp_path / "job" / "model", ARCHITECTURE)
    of_server = scored(job, capsys)
    assert of_server == scored(make_embedded(tmp_path / "embedded"), capsys)
    assert main(["train", str(job), "--rollouts-only", "--dir", str(tmp_path / "run"), "trainer.batches=2"]) == 0
    more = ["engine.kind=embedded", "engine.url=null", "data.eval=null", f"data.rollouts={tmp_path / 'run'}"]
    assert main(["train", str(job), "--dir", str(tmp_path / "trained"), *more]) == 0
    with RunReader(tmp_path / "trained") as run:
        first = next(row.record for row in run.metrics.read("batch"))
    assert first["drift_mean_abs"] < GAP, "from the model that sampled them"


def make_embedded(folder: Path) -> Path:
    job = make_job(folder)
    make_model(folder / "model", ARCHITECTURE)
    return job


def scored(job: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    assert main(["eval", str(job), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    return [each["response"] for each in told["samples"]]


def test_a_server_that_ends_and_is_started_again_outside_costs_the_run_nothing(
    server: OutsideVllm, tmp_path: Path
) -> None:
    process, run = begun(tmp_path, engine__kind="vllm", engine__url=server.url)
    try:
        until_batch(run, 4, process)
        server.kill()
        server.start()
        until_event(run, "engine_died", process)
        out, _ = process.communicate(timeout=290.0)
    finally:
        process.kill()
    assert process.returncode == 0, out[-3000:]
    with RunReader(run) as reader:
        reader.counts().check()
        kinds = Counter(event.kind for event in reader.events.read())
        batches = RunWatcher(reader).read().batches
        records = [row.record for row in reader.metrics.read("batch")]
    assert len(batches) == BATCHES
    assert kinds["engine_died"] == kinds["engine_back"] == 1
    assert not any(record["failed_samples"] for record in records)
    assert max(int(stale) for record in records for stale in record["staleness"]) <= ETA
    gaps = [batch.mismatch_max_abs for batch in batches if batch.mismatch_max_abs is not None]
    assert gaps
    assert max(gaps) < GAP, "it has had the newest weights since it is back"
