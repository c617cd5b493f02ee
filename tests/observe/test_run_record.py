"""Reading a real store: while a run goes, after it ended, and after it was killed and resumed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import observe_samples as samples
import pytest

from headrace.config import dump_config
from headrace.observe.record import Totals
from headrace.observe.run_record import RunWatcher
from headrace.observe.summary import build_summary
from headrace.store import RunReader, RunStore
from headrace.viewer.terminal.snapshot import take_snapshot


def create(path: Path, **options: Any) -> RunStore:
    return RunStore.create(path, config_yaml=dump_config(samples.config(**options)), config_sha256="c0ffee", now=1000.0)


def record(store: RunStore, number: int, branch: int = 0, **changes: Any) -> None:
    """The batch that made version `number`."""
    store.checkpoints.record_version(branch, number, 0.0)
    store.metrics.write(branch, number, 0.0, samples.batch(number - 1, branch=branch, **changes).to_json())


def commit(store: RunStore, number: int, branch: int = 0) -> None:
    prepared = store.checkpoints.prepare(number, lambda folder: (folder / "w").write_bytes(b"w"))
    store.checkpoints.commit(prepared, branch=branch, number=number, state={})


def test_a_run_that_goes(tmp_path: Path) -> None:
    store = create(tmp_path / "run", seed=11)
    with RunReader(tmp_path / "run") as reader:
        watcher = RunWatcher(reader)
        empty = watcher.read()
        assert (empty.status, empty.number, empty.batches, empty.planned_batches) == ("running", 0, (), None)
        assert empty.ahead is None
        assert take_snapshot(empty).eta_s is None

        store.events.write(0.0, "started", {"version": "v0", "batches": 9, "ahead": 24})
        store.metrics.write(
            0, 0, 0.0, {"number": 0, "reward_mean": 0.25, "response_tokens_mean": 4.0, "prompts": 8}, kind="eval"
        )
        record(store, 1)
        first = watcher.read()
        assert [batch.batch for batch in first.batches] == [0]
        assert (first.planned_batches, first.ahead) == (9, 24)
        assert (first.name, first.number, first.config.seed) == ("run", 1, 11)
        assert [(e.number, e.score, e.prompts) for e in first.evaluations] == [(0, 0.25, 8)]

        record(store, 2)
        again = watcher.read()
        assert [batch.batch for batch in again.batches] == [0, 1]
        assert len(again.evaluations) == 1
        assert [event.kind for event in again.events] == ["started"]
        assert first.batches == again.batches[:1]
        assert again.totals.elapsed_s == 2.0
    store.close()


def steps_of_a_look(store: RunStore, watcher: RunWatcher, reader: RunReader, number: int) -> int:
    """Steps of SQLite's machine, where one batch is new since the last look."""
    watcher.read()
    record(store, number)
    steps = [0]

    def step() -> None:
        steps[0] += 1

    connection = reader._database._connection
    connection.set_progress_handler(step, 1)
    watcher.read()
    connection.set_progress_handler(None, 1)
    return steps[0]


def test_what_a_look_reads_does_not_grow_with_the_run(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    with RunReader(tmp_path / "run") as reader:
        watcher = RunWatcher(reader)
        record(store, 1)
        early = steps_of_a_look(store, watcher, reader, 2)
        with store.transaction():
            for number in range(3, 203):
                record(store, number)
        assert steps_of_a_look(store, watcher, reader, 203) < 1.1 * early
    store.close()


def test_accuracy_is_preferred_to_the_mean_reward(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    result = {"accuracy": 0.5, "reward_mean": 0.1, "response_tokens_mean": 4.0, "prompts": 8}
    store.metrics.write(0, 0, 0.0, result, kind="eval")
    with RunReader(tmp_path / "run") as reader:
        assert RunWatcher(reader).read().evaluations[0].score == 0.5
    store.close()


def test_live_totals_are_fresher_than_the_last_record(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    record(store, 1)
    with RunReader(tmp_path / "run") as reader:
        run = RunWatcher(reader, live=lambda: (0, samples.totals(1.75))).read()
        assert run.totals == samples.totals(1.75)
    store.close()


@pytest.mark.parametrize("status", ["finished", "stopped", "failed"])
def test_a_run_that_ended_keeps_its_last_word_and_totals(tmp_path: Path, status: str) -> None:
    store = create(tmp_path / "run")
    record(store, 1)
    store.metrics.write(0, 1, 0.0, asdict(samples.totals(4)), kind="totals")
    store.set_status(status)
    store.close()
    with RunReader(tmp_path / "run") as reader:
        summary = build_summary(RunWatcher(reader).read())
    assert summary["status"] == status
    assert summary["wall_s"] == 4.0


def test_a_run_that_nobody_owns_and_that_did_not_end_was_killed(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    store.close()
    with RunReader(tmp_path / "run") as reader:
        assert RunWatcher(reader).read().status == "killed"


def test_killed_and_resumed(tmp_path: Path) -> None:
    """Branch 0 trains 4 batches in 4 s and commits 2; branch 1 trains batch 3 in 1 s and dies uncommitted;
    branch 2 trains 3 to 5. Times and tokens generated are those of all three, trained batches those that stand."""
    store = create(tmp_path / "run")
    for number in (1, 2, 3, 4):
        record(store, number)
    commit(store, 2)
    with RunReader(tmp_path / "run") as reader:
        watcher = RunWatcher(reader)
        assert len(watcher.read().batches) == 4
        store.close()

        store = RunStore.open(tmp_path / "run", config_sha256="c0ffee")
        assert store.checkpoints.restore().branch == 1
        record(store, 3, branch=1, totals=samples.totals(1), reward_mean=0.1)
        assert [batch.branch for batch in watcher.read().batches] == [0, 0, 1]
        assert store.checkpoints.restore().branch == 2
        for number in (3, 4, 5):
            record(store, number, branch=2, totals=samples.totals(number - 2), reward_mean=0.5)
        run = watcher.read()
        assert [(batch.branch, batch.batch) for batch in run.batches] == [(0, 0), (0, 1), (2, 2), (2, 3), (2, 4)]
        assert RunWatcher(reader).read() == run
        summary = build_summary(run)
        assert summary["version"] == 5
        assert summary["wall_s"] == 4 + 1 + 3
        assert summary["tokens"]["generated"] == 800
        assert summary["tokens"]["trained"] == 5 * 80
        assert summary["reward"]["last"] == 0.5
        assert take_snapshot(run).version == "v5~2"
    store.close()


def test_a_resumed_process_is_shown_before_its_first_batch(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    record(store, 1)
    commit(store, 1)
    assert store.checkpoints.restore().branch == 1
    with RunReader(tmp_path / "run") as reader:
        now = Totals(elapsed_s=2.0, generated_tokens=500)
        snapshot = take_snapshot(RunWatcher(reader, live=lambda: (1, now)).read())
    assert snapshot.generated_per_s == 250
    assert snapshot.elapsed_s == 3.0
    store.close()
