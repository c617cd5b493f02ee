"""Metrics, events, and the view from another process."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from store_helpers import CONFIG, SHA, checkpoint, create, finish, issue, reopen

from headrace.store import Counts, EventRow, MetricRow, RunDamaged, RunMissing, RunReader, StoreError


def test_metrics_by_kind_and_version(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    store.metrics.write(0, 1, 10.0, {"loss": 0.5, "staleness": {"0": 3}})
    store.metrics.write(0, 0, 11.0, {"accuracy": 0.25}, kind="eval")
    store.metrics.write(0, 2, 12.0, {"loss": float("inf")}, kind="batch")
    assert store.metrics.read("batch") == [
        MetricRow(1, 0, 1, 10.0, {"loss": 0.5, "staleness": {"0": 3}}),
        MetricRow(3, 0, 2, 12.0, {"loss": float("inf")}),
    ]
    assert [row.record for row in store.metrics.read("eval")] == [{"accuracy": 0.25}]
    assert [row.number for row in store.metrics.read("batch", after_id=1)] == [2]
    assert store.metrics.read("other") == []
    store.close()


def test_metrics_of_versions_taken_back_are_hidden(tmp_path: Path) -> None:
    """Branch 0 makes versions 1 to 4 and commits 2; branch 1 goes on from 2 to 3 and dies; branch 2 from 2 again."""
    store = create(tmp_path / "run")

    def write(branch: int, *numbers: int) -> None:
        for number in numbers:
            store.metrics.write(branch, number, 0.0, {})

    def visible() -> list[tuple[int, int]]:
        return [(row.branch, row.number) for row in store.metrics.read("batch")]

    write(0, 1, 2, 3, 4)
    checkpoint(store, 2)
    assert visible() == [(0, 1), (0, 2), (0, 3), (0, 4)]
    store.close()
    store = reopen(tmp_path / "run")
    assert store.checkpoints.restore().branch == 1
    assert visible() == [(0, 1), (0, 2)]
    write(1, 3)
    assert visible() == [(0, 1), (0, 2), (1, 3)]
    assert store.checkpoints.restore().branch == 2
    write(2, 3, 4)
    checkpoint(store, 4, branch=2)
    assert store.checkpoints.restore().branch == 3
    write(3, 5)
    assert visible() == [(0, 1), (0, 2), (2, 3), (2, 4), (3, 5)]
    assert store.checkpoints.lineage() == {3: 2**63 - 1, 2: 4, 0: 2}
    store.close()
    with sqlite3.connect(tmp_path / "run" / "run.db") as database:
        assert database.execute("SELECT count(*) FROM metrics").fetchone() == (8,)
    database.close()


def test_the_newest_of_each_branch_that_are_newer_than_one(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    store.metrics.write(0, 1, 0.0, {})
    checkpoint(store, 1)
    store.checkpoints.restore()
    for branch, number in ((0, 2), (1, 2), (1, 3)):
        store.metrics.write(branch, number, 0.0, {})
    store.metrics.write(1, 3, 0.0, {}, kind="totals")
    assert [(row.id, row.branch) for row in store.metrics.newest_of_branches("batch")] == [(2, 0), (4, 1)]
    assert [(row.id, row.branch) for row in store.metrics.newest_of_branches("batch", 2)] == [(4, 1)]
    assert store.metrics.newest_of_branches("batch", 4) == []
    store.close()


def test_events(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    store.events.write(5.0, "engine_died", {"engine": "embedded-0"})
    store.events.write(6.0, "restored", {})
    assert store.events.read() == [
        EventRow(1, 5.0, "engine_died", {"engine": "embedded-0"}),
        EventRow(2, 6.0, "restored", {}),
    ]
    assert [event.kind for event in store.events.read(after_id=1)] == ["restored"]
    store.close()


def test_versions_of_unknown_branches_are_refused(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    store.checkpoints.record_version(0, 0, 1.0)
    with pytest.raises(sqlite3.IntegrityError):
        store.checkpoints.record_version(1, 0, 1.0)
    store.close()


def test_a_reader_sees_a_run_while_it_is_written(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    with RunReader(tmp_path / "run") as reader:
        assert (reader.config_yaml, reader.config_sha256, reader.created_at) == (CONFIG, SHA, 1000.0)
        assert reader.counts() == Counts(0, 0, 0, 0, {})
        assert reader.version() is None
        finish(store, issue(store, 0))
        store.checkpoints.record_version(0, 3, 1.0)
        store.metrics.write(0, 3, 1.0, {"loss": 1.0})
        store.events.write(1.0, "started", {})
        assert reader.counts() == Counts(1, 0, 1, 0, {})
        assert reader.version() == (0, 3)
        assert [row.record for row in reader.metrics.read("batch")] == [{"loss": 1.0}]
        assert [event.kind for event in reader.events.read()] == ["started"]
    store.close()


def test_what_is_settled_is_counted_once(tmp_path: Path) -> None:
    store = create(tmp_path / "run", keep=1)
    with RunReader(tmp_path / "run") as reader:
        connection, steps = reader._database._connection, [0]

        def step() -> None:
            steps[0] += 1

        def settle(batch: int, positions: range) -> int:
            """Steps of SQLite's machine for a count once these are trained, and one is dropped, runs and is ready."""
            keys = [issue(store, position) for position in positions]
            for key in keys[1:]:
                finish(store, key)
            store.ledger.train(keys[3:], batch=batch)
            store.ledger.drop(keys[2], "overdue")
            checkpoint(store, batch + 1)
            reader.counts()
            steps[0] = 0
            connection.set_progress_handler(step, 1)
            reader.counts()
            connection.set_progress_handler(None, 1)
            store.ledger.drop(keys[0], "overdue")
            store.ledger.drop(keys[1], "surplus")
            return steps[0]

        few = settle(0, range(5))
        assert settle(1, range(5, 10)) == few
        settle(2, range(10, 110))
        assert settle(3, range(110, 115)) < 1.2 * few
        assert reader.counts() == Counts(115, 0, 0, 2 + 2 + 97 + 2, {"overdue": 8, "surplus": 4})
    store.close()


def test_a_reader_in_the_middle_of_reading_does_not_stop_the_writer(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    issue(store, 0)
    other = sqlite3.connect(f"file:{tmp_path}/run/run.db?mode=ro", uri=True, isolation_level=None)
    other.execute("BEGIN")
    assert other.execute("SELECT count(*) FROM attempts").fetchone() == (1,)
    for position in range(1, 50):
        issue(store, position)
    checkpoint(store, 1)
    assert other.execute("SELECT count(*) FROM attempts").fetchone() == (1,)
    other.close()
    store.close()


def test_a_reader_never_writes(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    with RunReader(tmp_path / "run") as reader, pytest.raises(StoreError, match="readonly"):
        reader._database.execute("DELETE FROM attempts")
    store.close()


def test_status(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    with RunReader(tmp_path / "run") as reader:
        assert (reader.status().name, reader.status().alive) == ("running", True)
        store.set_status("finished")
        store.close()
        assert (reader.status().name, reader.status().alive) == ("finished", False)
        store = reopen(tmp_path / "run")
        assert (reader.status().name, reader.status().alive) == ("finished", True)
        store.set_status("running")
        assert (reader.status().name, reader.status().alive) == ("running", True)
        with pytest.raises(ValueError, match="no status 'tired'; it is one of running, finished, stopped, failed"):
            store.set_status("tired")
        store.close()


def test_a_reader_of_nothing_and_of_a_damaged_run(tmp_path: Path) -> None:
    with pytest.raises(RunMissing, match="holds no run"):
        RunReader(tmp_path)
    (tmp_path / "run.db").write_bytes(b"not a database, but long enough to be looked at" * 50)
    with pytest.raises(RunDamaged, match=r"run\.db is damaged"):
        RunReader(tmp_path)
