"""Journal segments: what is written is read, what is torn is cut, what is damaged is told."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from store_helpers import checkpoint, create, finish, issue, journal, payload, reopen, train

from headrace.store import Journal, JournalOffset, JournalWriter, Receipt, Restored, RunDamaged, RunStore, StoreError

HEADER = 40
MAGIC = 8


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def test_offsets_and_rolling_by_hand(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, segment_bytes=MAGIC + 2 * (HEADER + 10))
    offsets = [journal.append((0, position, 0), bytes([position]) * 10) for position in range(3)]
    assert offsets == [JournalOffset(1, 8, 10), JournalOffset(1, 58, 10), JournalOffset(2, 8, 10)]
    assert [Journal(tmp_path).read(offset) for offset in offsets] == [bytes([position]) * 10 for position in range(3)]
    assert journal.end == (2, 58)
    assert not any(map(journal.is_synced, offsets))
    journal.sync()
    assert all(map(journal.is_synced, offsets))
    journal.close()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["000001.journal", "000002.journal"]


def test_a_record_larger_than_a_segment_gets_its_own(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, segment_bytes=100)
    big = os.urandom(1000)
    offsets = [journal.append((0, i, 0), big) for i in range(2)]
    assert [offset.segment for offset in offsets] == [1, 2]
    assert Journal(tmp_path).read(offsets[1]) == big
    journal.close()


def test_goes_on_in_the_last_segment(tmp_path: Path) -> None:
    first = JournalWriter(tmp_path)
    first.append((0, 0, 0), b"a", issue=3)
    first.close()
    assert list(Journal(tmp_path).recover({})) == [Receipt((0, 0, 0), 3, JournalOffset(1, 8, 1))]
    second = JournalWriter(tmp_path)
    assert second.append((0, 1, 0), b"b") == JournalOffset(1, 8 + HEADER + 1, 1)
    second.close()


def test_writers_have_files_of_their_own_and_one_reads_all(tmp_path: Path) -> None:
    writers = [JournalWriter(tmp_path, number) for number in (0, 2)]
    places = [
        writer.append((0, place, 0), bytes([place]), issue=place) for place, writer in enumerate([*writers, *writers])
    ]
    assert places == [
        JournalOffset(1, 8, 1, 0),
        JournalOffset(1, 8, 1, 2),
        JournalOffset(1, 8 + HEADER + 1, 1, 0),
        JournalOffset(1, 8 + HEADER + 1, 1, 2),
    ]
    for writer in writers:
        writer.close()
    journal = Journal(tmp_path)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["000001.journal", "2-000001.journal"]
    assert [journal.read(place) for place in places] == [b"\x00", b"\x01", b"\x02", b"\x03"]
    found = {receipt.place: receipt for receipt in journal.recover({})}
    assert found == {place: Receipt((0, n, 0), n, place) for n, place in enumerate(places)}
    assert journal.end(2) == (1, 8 + 2 * (HEADER + 1))
    assert journal.end(1) == (0, 0)


@pytest.mark.parametrize("kept", [0, 5, MAGIC, MAGIC + 1, MAGIC + HEADER - 1, MAGIC + HEADER + 3])
def test_a_torn_first_record_is_cut(tmp_path: Path, kept: int) -> None:
    journal = JournalWriter(tmp_path)
    journal.append((0, 0, 0), b"0123456789")
    journal.close()
    os.truncate(tmp_path / "000001.journal", kept)
    assert list(Journal(tmp_path).recover({})) == []
    again = JournalWriter(tmp_path)
    offset = again.append((0, 1, 0), b"next")
    again.close()
    last = Journal(tmp_path)
    assert list(last.recover({})) == [Receipt((0, 1, 0), 0, offset)]
    assert last.read(offset) == b"next"


def test_zeros_after_the_last_record_are_cut(tmp_path: Path) -> None:
    """What some file systems leave after a power cut: the size grew, the bytes did not arrive."""
    journal = JournalWriter(tmp_path)
    whole = journal.append((0, 0, 0), b"whole")
    journal.close()
    path = tmp_path / "000001.journal"
    size = path.stat().st_size
    os.truncate(path, size + 4096)
    assert list(Journal(tmp_path).recover({})) == [Receipt((0, 0, 0), 0, whole)]
    assert path.stat().st_size == size


def test_read_tells_file_and_byte_of_a_damaged_record(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path)
    journal.append((0, 0, 0), b"first")
    offset = journal.append((0, 1, 0), b"second")
    for byte in (0, 4, 8, HEADER):
        flip(tmp_path / "000001.journal", offset.offset + byte)
        with pytest.raises(RunDamaged, match=rf"000001\.journal is damaged at byte {offset.offset}"):
            Journal(tmp_path).read(offset)
        flip(tmp_path / "000001.journal", offset.offset + byte)
    assert Journal(tmp_path).read(offset) == b"second"
    (tmp_path / "000001.journal").unlink()
    with pytest.raises(RunDamaged, match=r"000001\.journal"):
        Journal(tmp_path).read(offset)
    journal.close()


def test_appends_go_on_while_other_threads_sync(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, segment_bytes=3000)
    stop = threading.Event()
    faults: list[Exception] = []

    def sync() -> None:
        while not stop.is_set():
            try:
                journal.sync()
            except Exception as error:
                faults.append(error)
                return

    threads = [threading.Thread(target=sync) for _ in range(3)]
    for thread in threads:
        thread.start()
    offsets = [journal.append((0, i, 0), payload((0, i, 0))) for i in range(500)]
    stop.set()
    for thread in threads:
        thread.join()
    journal.sync()
    assert faults == []
    assert all(map(journal.is_synced, offsets))
    assert not [fd for fd in os.listdir("/proc/self/fd") if _is_left_segment(fd, tmp_path, journal.end[0])]
    journal.close()
    assert len(list(Journal(tmp_path).recover({}))) == 500


def _is_left_segment(descriptor: str, folder: Path, active: int) -> bool:
    try:
        target = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return False
    return target.startswith(str(folder)) and not target.endswith(f"{active:06d}.journal")


def test_what_is_appended_to_a_segment_during_its_fsync_is_synced_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment takes one more record, and is left for the next one, while `sync` is in its fsync."""
    journal = JournalWriter(tmp_path, segment_bytes=MAGIC + 2 * (HEADER + 10))
    synced: list[str] = []
    fsync = os.fsync

    def append_meanwhile(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)
        if len(offsets) == 1:
            offsets.extend(journal.append((0, position, 0), b"0123456789") for position in (1, 2))

    offsets = [journal.append((0, 0, 0), b"0123456789")]
    monkeypatch.setattr(os, "fsync", append_meanwhile)
    journal.sync()
    assert [journal.is_synced(offset) for offset in offsets] == [True, False, False]
    synced.clear()
    journal.sync()
    assert synced == ["000001.journal", "000002.journal", tmp_path.name]
    assert all(map(journal.is_synced, offsets))
    journal.close()


def test_a_failed_fsync_is_never_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = JournalWriter(tmp_path)
    offset = journal.append((0, 0, 0), b"group")

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(StoreError, match="Input/output error"):
            journal.sync()
    with pytest.raises(StoreError, match="Input/output error"):
        journal.sync()
    assert not journal.is_synced(offset)


def test_a_journalled_group_is_ready_when_the_run_is_opened(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    keys = [issue(store, position) for position in range(3)]
    finish(store, keys[0])
    offset = journal(store, keys[2], payload(keys[2]))
    store.close()
    again = reopen(tmp_path / "run")
    rows = again.ledger.attempts("ready")
    assert [row.key for row in rows] == [keys[0], keys[2]]
    assert rows[1].offset == offset
    assert [row.key for row in again.ledger.attempts("running")] == [keys[1]]
    again.close()


def test_a_record_from_before_the_attempt_was_issued_is_not_taken(tmp_path: Path) -> None:
    """A power cut may lose the issue and keep the record: the attempt that is issued next is generated anew."""
    store = create(tmp_path / "run")
    store.writer.append((0, 0, 0), b"of an issue that was lost")
    store.close()
    store = reopen(tmp_path / "run")
    issue(store, 0)
    store.close()
    again = reopen(tmp_path / "run")
    assert [row.key for row in again.ledger.attempts("running")] == [(0, 0, 0)]
    finish(again, (0, 0, 0))
    again.close()


def test_a_record_of_an_attempt_that_was_withdrawn_is_not_taken(tmp_path: Path) -> None:
    """Its worker counted as lost, and brought it late; then the run ended before it was given out again."""
    store = create(tmp_path / "run")
    key = issue(store, 0)
    store.ledger.withdraw(key)
    store.writer.append(key, b"late", issue=0)
    store.close()
    again = reopen(tmp_path / "run")
    assert [row.key for row in again.ledger.attempts("running")] == [key]
    assert again.ledger.reissue(key, start_version=1, deadline=2) == 2
    again.close()


def test_only_a_record_of_the_issue_at_hand_is_taken(tmp_path: Path) -> None:
    """A worker that was given up may still write what it was given before."""
    store = create(tmp_path / "run")
    keys = [issue(store, position) for position in range(2)]
    for key in keys:
        store.ledger.reissue(key, start_version=1, deadline=3)
        store.writer.append(key, b"of the first issue")
    place = journal(store, keys[1], payload(keys[1]))
    store.close()
    again = reopen(tmp_path / "run")
    assert [(row.key, row.offset, row.issue) for row in again.ledger.attempts("ready")] == [(keys[1], place, 1)]
    assert [row.key for row in again.ledger.attempts("running")] == [keys[0]]
    again.close()


def test_what_each_writer_wrote_is_taken_over_and_pruned(tmp_path: Path) -> None:
    store = create(tmp_path / "run", keep=1, segment_bytes=100)
    other = JournalWriter(tmp_path / "run" / "journal", 1, segment_bytes=100)
    keys = [(0, position, 0) for position in range(6)]
    for number, key in enumerate(keys):
        store.ledger.issue(key, prompt_id="p", start_version=0, deadline=2, writer=number % 2)
    for key in keys[:4]:
        writer = (store.writer, other)[key[1] % 2]
        place = writer.append(key, payload(key))
        writer.sync()
        store.ledger.ready(writer.receipt(key, place))
    store.ledger.train(keys[:4], batch=0)
    other.append(keys[5], payload(keys[5]))  # its worker, and the run, are killed before the ledger hears of it
    checkpoint(store, 1)
    assert [tuple(segment) for segment in store.journal.segments()] == [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3)]
    store.ledger.drop(keys[4], "overdue")
    other.close()
    store.close()
    again = reopen(tmp_path / "run", keep=1, segment_bytes=100)
    assert [row.key for row in again.ledger.attempts("ready")] == [keys[5]]
    again.checkpoints.restore()
    checkpoint(again, 2, branch=1)
    assert [tuple(segment) for segment in again.journal.segments()] == [(0, 2), (1, 3)], "the last of each writer"
    again.close()


def test_a_record_written_after_a_cut_is_taken(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    store.writer.append((9, 9, 8), b"whole")
    store.writer.append((9, 9, 9), b"x" * 1000)
    key = issue(store, 0)
    store.close()
    os.truncate(tmp_path / "run" / "journal" / "000001.journal", 500)
    second = reopen(tmp_path / "run")
    offset = journal(second, key, payload(key))
    second.close()
    third = reopen(tmp_path / "run")
    assert [(row.key, row.offset) for row in third.ledger.attempts("ready")] == [(key, offset)]
    third.close()


def damaged_run(folder: Path, flipped: int | None) -> tuple[RunStore, Restored, list[JournalOffset]]:
    """Of five groups of 100 bytes in one segment: two ready, one trained after the commit, and two whose record is in
    the journal, but that are not ready yet. The byte `flipped` is flipped before the run is opened again."""
    store = create(folder)
    keys = [issue(store, position) for position in range(5)]
    offsets = [finish(store, key) for key in keys[:3]]
    store.ledger.train([keys[1]], batch=0)
    offsets += [journal(store, key, payload(key)) for key in keys[3:]]
    store.close()
    if flipped is not None:
        flip(folder / "journal" / "000001.journal", flipped)
    again = reopen(folder)
    return again, again.checkpoints.restore(), offsets


@settings(max_examples=60, deadline=None)
@example(flipped=MAGIC + 2 * (HEADER + 100) + 4)  # the length of the last record that the ledger knows
@given(flipped=st.integers(0, MAGIC + 5 * (HEADER + 100) - 1))
def test_a_flipped_byte_costs_the_group_that_it_is_in_and_no_other(flipped: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store, restored, offsets = damaged_run(Path(folder) / "run", flipped)
        hit = [place for place, offset in enumerate(offsets) if offset.offset <= flipped < offset.end[1]]
        ready = {row.key[1] for row in restored.ready}
        # Where the length of a record is hit that the ledger does not know, those after it that it does not know either
        # cannot be found.
        unknown_length = flipped in range(offsets[3].offset + 4, offsets[3].offset + 8)
        lost = {*hit, *([4] if unknown_length else [])}
        assert set(range(5)) - ready == lost
        assert [row.key[1] for row in restored.running] == sorted(lost)
        assert [row.key[1] for row in restored.damaged] == [place for place in hit if place < 3]
        for row in restored.ready:
            assert row.offset is not None
            assert store.journal.read(row.offset) == payload(row.key)
        store.ledger.counts().check()
        for row in restored.running:
            finish(store, row.key)
        store.close()
        third = reopen(Path(folder) / "run")
        assert not third.checkpoints.restore().damaged
        assert third.ledger.counts().ready == 5
        third.close()


def test_a_group_whose_record_is_damaged_says_where_it_was(tmp_path: Path) -> None:
    store, restored, offsets = damaged_run(tmp_path / "run", MAGIC + 2 * (HEADER + 100) + HEADER + 1)
    (row,) = restored.damaged
    assert (row.key, row.prompt_id, row.offset) == ((0, 2, 0), "p2", offsets[2])
    store.close()


def test_a_segment_that_is_gone_costs_its_groups_and_not_the_run(tmp_path: Path) -> None:
    store, *_ = damaged_run(tmp_path / "run", None)
    store.close()
    (tmp_path / "run" / "journal" / "000001.journal").unlink()
    again = reopen(tmp_path / "run")
    restored = again.checkpoints.restore()
    assert len(restored.damaged) == len(restored.running) == 5
    for row in restored.running:
        finish(again, row.key)
    again.close()


def test_another_groups_record_in_the_place_of_a_lost_one_is_not_taken_for_it(tmp_path: Path) -> None:
    """A group that was trained before the newest commit is not missed until an older checkpoint is restored."""
    store = create(tmp_path / "run")
    keys = [issue(store, position) for position in range(2)]
    for batch, key in enumerate(keys):
        offset = finish(store, key)
        store.ledger.train([key], batch=batch)
        checkpoint(store, batch + 1)
    store.close()
    flip(tmp_path / "run" / "journal" / "000001.journal", offset.offset + HEADER)
    again = reopen(tmp_path / "run")
    assert again.checkpoints.restore().damaged == []
    other = issue(again, 2)
    assert finish(again, other) == offset, "what was torn is cut"
    again.ledger.drop(other, "zero_spread")
    again.close()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step_2")
    third = reopen(tmp_path / "run")
    restored = third.checkpoints.restore()
    assert restored.number == 1
    assert [row.key for row in restored.damaged] == [keys[1]]
    third.close()


def test_damage_in_a_group_that_is_settled_does_no_harm(tmp_path: Path) -> None:
    store = create(tmp_path / "run", keep=1)
    train(store, 0, batch=0)
    checkpoint(store, 1)
    store.ledger.drop(issue(store, 1), "failed")
    store.close()
    flip(tmp_path / "run" / "journal" / "000001.journal", MAGIC + HEADER)
    again = reopen(tmp_path / "run", keep=1)
    assert again.ledger.counts().trained == 1
    again.close()
