"""Who writes the journal: no number is used twice, and what a writer that has ended leaves goes once it is settled."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_helpers import checkpoint, create, payload, reopen, segments_read

from headrace.store import JournalWriter, Receipt, RunStore


def written(store: RunStore, position: int, writer: int) -> Receipt:
    """A running attempt's group, in the journal of another process."""
    key = (0, position, 0)
    store.ledger.issue(key, prompt_id="p", start_version=0, deadline=2, writer=writer)
    process = JournalWriter(store.path / "journal", writer)
    place = process.append(key, payload(key))
    process.close()
    return Receipt(key, 0, place)


def trained(store: RunStore, batch: int) -> int:
    """The writer of a group that was trained in `batch`."""
    writer = store.writers.begin()
    receipt = written(store, batch, writer)
    store.ledger.ready(receipt)
    store.ledger.train([receipt.key], batch=batch)
    return writer


def writers_with_segments(store: RunStore) -> list[int]:
    return [segment.writer for segment in store.journal.segments()]


def test_the_journal_does_not_grow_with_lives(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    for batch in range(5):
        store.writers.end(trained(store, batch))
        checkpoint(store, batch + 1)
    assert writers_with_segments(store) == [5], "batch 4 is trained again if checkpoint 5 is lost"
    store.close()


def test_one_that_may_still_write_keeps_its_last_segment(tmp_path: Path) -> None:
    store = create(tmp_path / "run", keep=1)
    writer = trained(store, 0)
    checkpoint(store, 1)
    assert writers_with_segments(store) == [writer]
    store.writers.end(writer)
    checkpoint(store, 2)
    assert writers_with_segments(store) == []
    store.close()


def test_a_group_that_was_not_taken_over_yet_stays(tmp_path: Path) -> None:
    """Its worker was lost once it was written, and before it was told of."""
    store = create(tmp_path / "run", keep=1)
    writer = store.writers.begin()
    receipt = written(store, 0, writer)
    store.writers.end(writer)
    checkpoint(store, 1)
    assert store.journal.written(writer) == [receipt]
    store.ledger.drop(receipt.key, "overdue")
    checkpoint(store, 2)
    assert writers_with_segments(store) == []
    store.close()


def test_no_number_is_used_again_when_its_segments_are_gone(tmp_path: Path) -> None:
    """Another group's record would lie where the ledger has that of a settled one."""
    store = create(tmp_path / "run", keep=1)
    for batch in range(2):
        store.writers.end(trained(store, batch))
    checkpoint(store, 2)
    assert writers_with_segments(store) == []
    store.close()
    again = reopen(tmp_path / "run", keep=1)
    assert [again.writers.begin(), again.writers.begin()] == [3, 4]
    again.close()


def test_what_settled_writers_left_is_not_read_at_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = create(tmp_path / "run", keep=1)
    trained(store, 0)
    needed = trained(store, 1)
    checkpoint(store, 1)
    store.close()
    read = segments_read(monkeypatch)
    again = reopen(tmp_path / "run", keep=1)
    assert read == [f"{needed}-000001.journal"]
    again.checkpoints.restore()
    checkpoint(again, 2, branch=1)
    assert writers_with_segments(again) == [needed]
    again.close()
