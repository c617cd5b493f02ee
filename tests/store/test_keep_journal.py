"""A journal of which all is kept: every finished group stays readable, and what is settled is not read at a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_helpers import checkpoint, create, finish, issue, journal, payload, reopen, segments_read, train

from headrace.store import RunReader


def test_segments_stay_after_their_groups_are_trained_and_committed(tmp_path: Path) -> None:
    """One group a segment; the same store that keeps only what is needed keeps the last."""
    store = create(tmp_path / "run", keep=1, segment_bytes=100, keep_journal=True)
    keys = [train(store, batch, batch=batch) for batch in range(4)]
    dropped = issue(store, 9)
    finish(store, dropped)
    store.ledger.drop(dropped, "zero_spread")
    checkpoint(store, 4)
    assert [segment.number for segment in store.journal.segments()] == [1, 2, 3, 4, 5]
    store.close()
    with RunReader(tmp_path / "run") as reader:
        found = [(group.state, group.batch, group.payload) for group in reader.journalled()]
        assert reader.journal_bytes() == sum(f.stat().st_size for f in (tmp_path / "run" / "journal").iterdir())
    assert found == [
        *(("trained", batch, payload(key)) for batch, key in enumerate(keys)),
        ("dropped", 2, payload(dropped)),
    ]
    again = reopen(tmp_path / "run", keep=1, segment_bytes=100, keep_journal=False)
    again.checkpoints.restore()
    checkpoint(again, 4, branch=1)
    assert [segment.number for segment in again.journal.segments()] == [5], "told to keep what is needed from now on"
    again.close()


def test_settled_segments_are_not_read_at_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = create(tmp_path / "run", keep=1, segment_bytes=100, keep_journal=True)
    for batch in range(5):
        train(store, batch, batch=batch)
    checkpoint(store, 3)
    running = issue(store, 5)
    journal(store, running, payload(running))  # killed before it was ready
    store.close()
    read = segments_read(monkeypatch)
    again = reopen(tmp_path / "run", keep=1, segment_bytes=100, keep_journal=True)
    assert read == ["000004.journal", "000005.journal", "000006.journal"], "batches 3 and 4, and what ran"
    restored = again.checkpoints.restore()
    assert [row.key for row in restored.ready] == [(0, 3, 0), (0, 4, 0), running]
    again.close()
