"""The order of writes and fsyncs that a power cut relies on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from store_helpers import create, issue, journal, payload, reopen, write_model


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(`fsync` or `rename`, the file's name), as they happen."""
    seen: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def watch_fsync(descriptor: int) -> None:
        seen.append(("fsync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    def watch_rename(source: Path, target: Path) -> None:
        seen.append(("rename", Path(target).name))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", watch_fsync)
    monkeypatch.setattr(os, "rename", watch_rename)
    return seen


def test_a_checkpoint_is_durable_before_it_has_its_name(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    store = create(tmp_path / "run")
    calls.clear()
    store.checkpoints.prepare(3, write_model)
    named = calls.index(("rename", "step_3"))
    assert sorted(name for _, name in calls[:named]) == [
        ".tmp_3",
        "manifest.json",
        "model",
        "optimizer.bin",
        "weights.bin",
    ]
    assert calls[named + 1 :] == [("fsync", "checkpoints")]
    store.close()


def test_sync_covers_every_segment_written_and_the_folder(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    store = create(tmp_path / "run", segment_bytes=200)
    calls.clear()
    for position in range(2):
        key = issue(store, position)
        journal(store, key, payload(key))
    assert calls == []
    store.writer.sync()
    assert calls == [("fsync", "000001.journal"), ("fsync", "000002.journal"), ("fsync", "journal")]
    calls.clear()
    store.writer.sync()
    assert calls == []
    store.writer.append(issue(store, 2), b"more")
    store.writer.sync()
    assert calls == [("fsync", "000002.journal")]
    store.close()


def test_what_a_kill_left_unsynced_is_synced_before_it_is_ready(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    store = create(tmp_path / "run")
    key = issue(store, 0)
    journal(store, key, payload(key))
    store.close()
    calls.clear()
    again = reopen(tmp_path / "run")
    assert ("fsync", "000001.journal") in calls
    assert again.ledger.counts().ready == 1
    again.close()


def test_commits_and_restores_are_durable_and_the_rest_is_fast(tmp_path: Path) -> None:
    """PRAGMA synchronous: 1 is NORMAL, 2 is FULL; seen by the statements themselves."""
    store = create(tmp_path / "run")
    seen: list[int] = []
    statements: list[str] = []

    def trace(sql: str) -> None:
        statements.append(sql)

    store._database._connection.set_trace_callback(trace)
    issue(store, 0)
    prepared = store.checkpoints.prepare(1, write_model)
    store.checkpoints.commit(prepared, branch=0, number=1, state={})
    store.checkpoints.restore()
    level = 1
    for sql in statements:
        if sql.startswith("PRAGMA synchronous"):
            level = 2 if sql.endswith("FULL") else 1
        if sql == "COMMIT":
            seen.append(level)
    assert seen == [1, 2, 2]
    store._database._connection.set_trace_callback(None)
    store.close()
