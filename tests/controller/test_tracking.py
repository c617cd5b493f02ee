"""Trackers of whole runs: what they have is what the record has, and what goes wrong with one costs a warning."""

from __future__ import annotations

import asyncio
import csv
import fcntl
import json
from pathlib import Path
from typing import Any

import psutil
import pytest
from controller_jobs import make_job, run
from killed_run import run_killed

from headrace.cli.main import main
from headrace.config import TrainConfig, dump_config, load_config
from headrace.config.track import CsvTracker, TensorboardTracker, TrackerSection
from headrace.controller import tracking as room
from headrace.controller.tracking import tracking
from headrace.observe.run_record import RunWatcher
from headrace.observe.trackers.names import batch_values
from headrace.runtime.inline import SystemClock
from headrace.store import RunReader, RunStore
from headrace.store.rollouts import Query, RolloutsReader


def events(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    with RunReader(folder) as reader:
        return [(event.kind, event.data) for event in reader.events.read() if event.kind.startswith("tracker")]


def csv_batches(folder: Path) -> list[dict[str, str]]:
    with (folder / "trackers" / "csv" / "batches.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.copied
def test_a_run_with_csv_files(tmp_path: Path) -> None:
    job, folder = make_job(tmp_path / "job", track=["csv"]), tmp_path / "run"
    code, out = run("train", job, "--dir", folder)
    assert code == 0, out
    assert events(folder) == []
    with RunReader(folder) as reader:
        batches = RunWatcher(reader).read().batches
    got = csv_batches(folder)
    assert [int(row["step"]) for row in got] == [batch.batch + 1 for batch in batches] == list(range(1, 7))
    for row, batch in zip(got, batches, strict=True):
        told = {name: value for name, value in row.items() if name not in ("step", "at") and value}
        assert told == {name: repr(value) for name, value in batch_values(batch).items()}
    with RolloutsReader(folder) as reader:
        for batch in batches:
            with (folder / "trackers" / "csv" / f"samples-{batch.batch + 1}.csv").open(newline="") as file:
                rows = list(csv.DictReader(file))
            kept = reader.read(Query(first_batch=batch.batch, last_batch=batch.batch))
            # An apostrophe before what a spreadsheet would compute.
            told = ((row["prompt"], row["response"].removeprefix("'"), row["reward"]) for row in rows)
            assert sorted(told) == sorted((one.turns[0].text, one.turns[1].text, str(one.reward)) for one in kept)
    with (folder / "trackers" / "csv" / "summary.csv").open(newline="") as file:
        summary = {row["name"]: row["value"] for row in csv.DictReader(file)}
    written = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["tokens.trained"]) == ("finished", str(written["tokens"]["trained"]))
    assert summary["wall_s"] == str(written["wall_s"])


@pytest.mark.slow
@pytest.mark.copied
def test_a_tracker_that_fails_costs_a_warning(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    job = make_job(tmp_path / "job", track=[{"type": "csv", "folder": str(tmp_path / "taken")}], trainer__batches=2)
    folder = tmp_path / "run"
    code, out = run("train", job, "--dir", folder)
    assert code == 0, out
    ((kind, data),) = events(folder)
    assert (kind, data["tracker"]) == ("tracker_failed", "csv")
    assert "FileExistsError" in data["message"]
    assert "the run goes on without it" in data["message"]
    assert out.count("csv is given up") == 1, "told once: by the view, or by a warning where none is open"
    assert "Traceback" in (folder / "logs" / "csv.log").read_text()


def test_a_missing_package_is_refused_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headrace.observe.trackers.packages.find_spec", lambda name: None)
    job = make_job(tmp_path / "job", track=["csv", {"type": "wandb", "project": "p"}])
    for command in (["check", str(job)], ["train", str(job), "--dir", str(tmp_path / "run")]):
        assert main(command) == 2
        told = capsys.readouterr().err.strip()
        assert told.endswith(
            "track has wandb, and the package wandb is not installed: pip install 'headrace[wandb]', or remove it from "
            "track"
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.copied
def test_trackers_may_change_when_a_run_is_resumed(tmp_path: Path) -> None:
    """One that is new is told of the whole run."""
    job, folder = make_job(tmp_path / "job", trainer__batches=4), tmp_path / "run"
    run_killed(["train", str(job), "--dir", str(folder)], folder, after=3)
    assert not (folder / "trackers").exists()
    code, out = run("train", job, "--dir", folder, "--resume", "track=[csv]")
    assert code == 0, out
    assert [int(row["step"]) for row in csv_batches(folder)] == [1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.copied
def test_a_kill_takes_back_what_was_tracked_beyond_the_commit(tmp_path: Path) -> None:
    """Checkpoints every 2 batches, ended after the third: batch 3 is trained again, and is in the files once."""
    job, folder = (
        make_job(tmp_path / "job", trainer__batches=4, track=["csv"], checkpoint__background=False),
        tmp_path / "run",
    )
    run_killed(["train", str(job), "--dir", str(folder)], folder, after=3, trackers=["csv"])
    assert [(row["step"], row["run/branch"]) for row in csv_batches(folder)] == [
        ("1", "0.0"), ("2", "0.0"), ("3", "0.0")
    ]  # fmt: skip
    code, out = run("train", job, "--dir", folder, "--resume")
    assert code == 0, out
    assert [(row["step"], row["run/branch"]) for row in csv_batches(folder)] == [
        ("1", "0.0"), ("2", "0.0"), ("3", "1.0"), ("4", "1.0")
    ]  # fmt: skip


# The processes alone


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    config = TrainConfig.model_validate({"model": {"path": "m"}, "data": {"train": "t.jsonl"}})
    return RunStore.create(tmp_path / "run", config_yaml=dump_config(config), config_sha256="c0ffee", now=1000.0)


def track(store: RunStore, *sections: TrackerSection, meanwhile: float = 0.0) -> list[tuple[str, dict[str, Any]]]:
    told: list[tuple[str, dict[str, Any]]] = []

    async def go() -> None:
        def event(kind: str, data: dict[str, Any]) -> None:
            told.append((kind, data))

        async with tracking(sections, store.path, SystemClock(), event, lambda: False):
            await asyncio.sleep(meanwhile)

    asyncio.run(go())
    store.close()
    return told


@pytest.mark.slow
@pytest.mark.copied
def test_a_tracker_that_hangs_is_ended(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(room, "CLOSING_S", 3.0)
    (store.path / "trackers").mkdir()
    with (store.path / "trackers" / "csv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = track(store, CsvTracker())
    ((kind, data),) = told
    assert kind == "tracker_failed"
    assert "csv did not log the rest of the run within 3 s" in data["message"]
    assert "csv did not log the rest" in caplog.text


def test_one_that_dies_is_told_of_and_the_others_go_on(store: RunStore) -> None:
    """TensorBoard's package is not there, or its folder cannot be: either way that process ends."""
    (store.path / "taken").write_text("")
    told = track(store, TensorboardTracker(folder=str(store.path / "taken")), CsvTracker())
    assert [(kind, data["tracker"]) for kind, data in told] == [("tracker_failed", "tensorboard")]
    assert (store.path / "trackers" / "csv" / "summary.csv").exists()


def test_no_process_is_left(store: RunStore) -> None:
    assert track(store, CsvTracker()) == []
    left = [child.cmdline() for child in psutil.Process().children(recursive=True)]
    assert not [command for command in left if "headrace.observe.trackers.process" in command]


def test_the_config_of_a_job_has_trackers(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", track=["csv", {"type": "mlflow", "experiment": "e"}])
    trackers = load_config(TrainConfig, job).trackers
    assert [tracker.type for tracker in trackers] == ["csv", "mlflow"]
