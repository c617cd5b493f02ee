"""Engines in processes of their own: a run with them, a kill in mid-run, and what the config refuses."""

from __future__ import annotations

import hashlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from children import child
from controller_jobs import make_job
from devices import BETWEEN_PROCESSES

from headrace.cli.main import main
from headrace.engines.protocol import GenerateRequest, TokenChunk
from headrace.engines.remote import RemoteEngine
from headrace.runtime.process.site import site_parent
from headrace.store import RunReader
from headrace.weights.plane import Manifest, Snapshot
from headrace.weights.shm import ShmPublisher

BATCHES, ETA = 12, 2


def kinds_of(folder: Path) -> Counter[str]:
    """The kinds of a finished run's events: the law and the bound hold in it."""
    with RunReader(folder) as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        batches = [row.record for row in reader.metrics.read("batch")]
        kinds = Counter(event.kind for event in reader.events.read())
    assert len(batches) == BATCHES
    assert max((int(stale) for record in batches for stale in record["staleness"]), default=0) <= ETA
    assert not any(record["failed_samples"] for record in batches)
    return kinds


@pytest.mark.slow
@pytest.mark.cpu
def test_a_run_goes_on_when_an_engines_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(
        tmp_path / "job",
        trainer__batches=BATCHES,
        async__max_staleness=ETA,
        rollout__sampling__max_new_tokens=24,
        engine__replicas=2,
        engine__process="true",
    )
    digest = hashlib.sha256(str(tmp_path / "run").encode()).hexdigest()[:8]

    def in_memory() -> list[Path]:
        return list(site_parent().glob(f"headrace-*-{digest}-*/weights/*/slot-*"))

    generate, asked, came, went_on = RemoteEngine.generate, Counter[int](), Counter[str](), Counter[str]()

    async def watched(engine: RemoteEngine, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        asked[engine.rank] += 1
        if engine.rank == 1 and asked[1] == 9:
            victim = child("engine/1")
            assert len(in_memory()) == 2
            os.kill(victim.pid, signal.SIGKILL)
        name, _, part = request.request_id.rpartition(".")
        if int(part):
            went_on[name] += 1
            assert request.sampling.max_new_tokens == 24 - came[name], "no token that came is sampled again"
        async for chunk in generate(engine, request):
            came[name] += len(chunk.tokens)
            yield chunk

    monkeypatch.setattr(RemoteEngine, "generate", watched)
    assert main(["train", str(job), "data.shuffle=false", "--dir", str(tmp_path / "run")]) == 0
    kinds = kinds_of(tmp_path / "run")
    assert kinds["engine_died"] == 1
    assert went_on, "requests went on elsewhere"
    assert kinds["swap"] >= BATCHES // 2, "a slow engine takes the newest version, not each"
    assert not in_memory(), "nothing is left in memory"


@pytest.mark.slow
@pytest.mark.cpu
def test_a_version_that_arrives_wrong_in_a_process_is_refused_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, so that one tensor that is left out shows."""
    job = make_job(
        tmp_path / "job",
        model__dtype="float32",
        trainer__batches=BATCHES,
        async__max_staleness=ETA,
        engine__process="true",
    )
    send, damaged = ShmPublisher.send, list[str]()

    def send_wrong(publisher: ShmPublisher, snapshot: Snapshot) -> Manifest:
        if snapshot.version.number == 3 and not damaged:
            name = next(name for name in snapshot.tensors if "down_proj" in name)
            damaged.append(name)
            snapshot.tensors[name].zero_()
        return send(publisher, snapshot)

    monkeypatch.setattr(ShmPublisher, "send", send_wrong)
    assert main(["train", str(job), "--dir", str(tmp_path / "run")]) == 0
    assert damaged
    kinds = kinds_of(tmp_path / "run")
    assert kinds["update_failed"] >= 1
    with RunReader(tmp_path / "run") as reader:
        told = [event.data for event in reader.events.read() if event.kind == "update_failed"]
        taken = {event.data["version"] for event in reader.events.read() if event.kind == "swap"}
    assert any("did not arrive as it was published" in str(data) for data in told)
    assert "(0, 3)" not in taken
    assert len(taken) >= BATCHES - 4


def test_check_says_where_the_engines_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = make_job(tmp_path / "job", engine__process="true", engine__replicas=2)
    assert main(["check", str(job)]) == 0
    said = capsys.readouterr().out
    assert f"weights by {BETWEEN_PROCESSES}" in said
    assert "event loop; engines in 2 processes of their own, 1 CPU thread(s) each" in said


def test_what_does_not_reach_a_process_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = make_job(tmp_path / "job", engine__process="true", weights__transport="memory")
    assert main(["check", str(job)]) != 0
    assert "weights.transport is memory, which reaches no other process" in capsys.readouterr().err
    job = make_job(tmp_path / "other", weights__transport="shm")
    assert main(["check", str(job)]) != 0
    assert "set engine.process: true" in capsys.readouterr().err
