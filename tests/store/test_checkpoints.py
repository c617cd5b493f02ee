"""Checkpoints: whole or not there, restored to exactly one commit, pruned only when safe."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

import pytest
from store_helpers import checkpoint, create, finish, issue, journal, payload, reopen, train, write_model

from headrace.store import IllegalTransition, RunDamaged, RunStore, StoreError
from headrace.store.media.files import Digest


def steps(store: RunStore) -> list[str]:
    return sorted(path.name for path in (store.path / "checkpoints").iterdir())


def segments(store: RunStore) -> list[int]:
    return [segment.number for segment in store.journal.segments()]


def test_prepare_writes_a_whole_folder_with_its_manifest(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    prepared = store.checkpoints.prepare(3, write_model)
    assert prepared.path == tmp_path / "run" / "checkpoints" / "step_3"
    manifest = json.loads((prepared.path / "manifest.json").read_text())
    assert manifest == {"number": 3, "files": prepared.files}
    # sha256 of 5000 times "w", by `sha256sum`.
    assert prepared.files["model/weights.bin"] == {
        "bytes": 5000,
        "sha256": "4d3ce487907df7c82875b924d841f0a3d576492e4d589b734abbd71d966151a8",
    }
    assert steps(store) == ["step_3"]
    store.close()


def test_what_a_writer_says_of_its_files_is_taken_and_a_file_of_another_length_is_refused(tmp_path: Path) -> None:
    """So that each hashes what it wrote, and nobody reads it again."""
    store = create(tmp_path / "run")
    told = {"model/weights.bin": Digest(5000, "as it says")}
    prepared = store.checkpoints.prepare(3, write_model, told)
    assert prepared.files["model/weights.bin"] == {"bytes": 5000, "sha256": "as it says"}
    with pytest.raises(StoreError, match=r"weights\.bin has 5000 bytes, and whoever wrote it says 4999"):
        store.checkpoints.prepare(4, write_model, {"model/weights.bin": Digest(4999, "as it says")})
    assert steps(store) == ["step_3"]
    store.close()


def test_the_manifest_tells_which_parts_of_tensors_are_in_which_file(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    boxes = {"master.w": {"whole": [4, 2], "begins": [2, 0], "shape": [2, 2]}}
    prepared = store.checkpoints.prepare(3, write_model, {"model/weights.bin": Digest(5000, "as it says", boxes)})
    manifest = json.loads((prepared.path / "manifest.json").read_text())
    assert manifest == {"number": 3, "files": prepared.files, "boxes": {"model/weights.bin": boxes}}
    assert prepared.files["model/weights.bin"] == {"bytes": 5000, "sha256": "as it says"}
    store.close()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = create(tmp_path / "run")

    def fail(folder: Path) -> None:
        write_model(folder)
        raise ValueError("no such tensor")

    with pytest.raises(ValueError, match="no such tensor"):
        store.checkpoints.prepare(3, fail)
    assert steps(store) == []
    store.close()


def test_a_folder_that_nobody_wrote_into_is_no_checkpoint(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    with pytest.raises(StoreError, match="nothing was written into checkpoint 3; what was committed before stays"):
        store.checkpoints.prepare(3, lambda folder: None)
    assert steps(store) == []
    store.close()


def test_preparing_again_replaces_what_was_not_committed(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    store.checkpoints.prepare(3, write_model)
    again = store.checkpoints.prepare(3, lambda folder: (folder / "other.bin").touch())
    assert list(again.files) == ["other.bin"]
    assert sorted(path.name for path in again.path.iterdir()) == ["manifest.json", "other.bin"]
    store.close()


def test_restore_without_a_checkpoint_is_version_0(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    key = train(store, 0, batch=0)
    running = issue(store, 1)
    store.ledger.drop(issue(store, 2), "failed")
    store.close()
    again = reopen(tmp_path / "run")
    restored = again.checkpoints.restore()
    assert (restored.number, restored.branch, restored.path, restored.state) == (0, 1, None, {})
    assert [row.key for row in restored.ready] == [key]
    assert restored.ready[0].batch is None
    assert [row.key for row in restored.running] == [running]
    assert again.ledger.counts().dropped == {"failed": 1}
    again.close()


def test_restore_takes_back_what_was_trained_after_the_commit(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    keys = [train(store, batch, batch=batch) for batch in range(4)]
    prepared = store.checkpoints.prepare(2, write_model)
    keys.append(train(store, 4, batch=4))
    store.checkpoints.commit(prepared, branch=0, number=2, state={"rng": [1, 2], "lr": 0.5})
    store.close()
    again = reopen(tmp_path / "run")
    restored = again.checkpoints.restore()
    assert (restored.number, restored.branch, restored.path) == (2, 1, prepared.path)
    assert restored.state == {"rng": [1, 2], "lr": 0.5}
    assert [row.key for row in restored.ready] == keys[2:]
    assert [(row.key, row.batch) for row in again.ledger.attempts("trained")] == [(keys[0], 0), (keys[1], 1)]
    assert [again.journal.read(row.offset) for row in restored.ready] == [payload(key) for key in keys[2:]]
    again.ledger.train([keys[4]], batch=2)
    again.close()


def test_what_is_written_within_a_fork_is_undone_with_it(tmp_path: Path) -> None:
    with closing(create(tmp_path / "run")) as store:
        key = issue(store, 0)
        with pytest.raises(KeyError), store.checkpoints.fork(store.checkpoints.newest()) as restored:  # noqa: PT012
            assert (restored.number, restored.branch) == (0, 1)
            store.ledger.due(key, deadline=9)
            raise KeyError
        assert [row.deadline for row in store.ledger.attempts("running")] != [9]
        with store.checkpoints.fork(store.checkpoints.newest()) as restored:
            store.ledger.due(key, deadline=9)
        assert restored.branch == 1
        assert store.checkpoints.lineage().keys() == {0, 1}
        assert [row.deadline for row in store.ledger.attempts("running")] == [9]


def test_a_prepared_checkpoint_that_was_not_committed_is_swept(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    train(store, 0, batch=0)
    checkpoint(store, 1)
    store.checkpoints.prepare(2, write_model)
    (tmp_path / "run" / "checkpoints" / ".tmp_3").mkdir()
    (tmp_path / "run" / "checkpoints" / "my_copy").mkdir()
    store.close()
    again = reopen(tmp_path / "run")
    assert again.checkpoints.restore().number == 1
    assert steps(again) == ["my_copy", "step_1"]
    again.close()


def test_a_committed_batch_is_closed(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    train(store, 0, batch=0)
    checkpoint(store, 1)
    with pytest.raises(IllegalTransition, match="cannot train in batch 0: the checkpoint of version 1"):
        train(store, 1, batch=0)
    store.close()


def test_commits_go_forward_only(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    early, late = store.checkpoints.prepare(1, write_model), store.checkpoints.prepare(2, write_model)
    with pytest.raises(StoreError, match="prepared is of version 1, the commit of 2"):
        store.checkpoints.commit(early, branch=0, number=2, state={})
    store.checkpoints.commit(late, branch=0, number=2, state={})
    with pytest.raises(StoreError, match="cannot commit version 1: version 2 is committed already"):
        store.checkpoints.commit(early, branch=0, number=1, state={})
    store.close()


def test_the_same_version_may_be_committed_again_after_a_restore(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    checkpoint(store, 1)
    checkpoint(store, 2)
    store.close()
    again = reopen(tmp_path / "run")
    branch = again.checkpoints.restore().branch
    prepared = checkpoint(again, 2, branch=branch)
    assert steps(again) == ["step_1", "step_2.1"]
    again.close()
    third = reopen(tmp_path / "run")
    restored = third.checkpoints.restore()
    assert (restored.number, restored.branch, restored.path) == (2, 2, prepared.path)
    third.close()


def test_keeps_the_newest_and_version_0_counts_as_one(tmp_path: Path) -> None:
    store = create(tmp_path / "run", keep=2)
    seen = []
    for number in (2, 4, 6):
        checkpoint(store, number)
        seen.append(steps(store))
    assert seen == [["step_2"], ["step_2", "step_4"], ["step_4", "step_6"]]
    store.close()


def test_segments_go_when_the_oldest_kept_checkpoint_covers_them(tmp_path: Path) -> None:
    """One group a segment; group k is trained in batch k, so lies in segment k + 1."""
    store = create(tmp_path / "run", keep=2, segment_bytes=100)
    for batch in range(2):
        train(store, batch, batch=batch)
    checkpoint(store, 2)
    assert segments(store) == [1, 2]
    for batch in range(2, 4):
        train(store, batch, batch=batch)
    checkpoint(store, 4)
    assert segments(store) == [3, 4]
    store.ledger.drop(train_ready(store, 4), "filtered")
    waiting = train_ready(store, 5)
    train(store, 6, batch=4)
    train(store, 7, batch=5)
    checkpoint(store, 6)
    assert segments(store) == [6, 7, 8]
    assert store.journal.read(store.ledger.attempts("ready")[0].offset) == payload(waiting)
    store.close()


def train_ready(store: RunStore, position: int) -> tuple[int, int, int]:
    key = issue(store, position)
    finish(store, key)
    return key


def test_a_segment_with_a_record_that_is_not_ready_yet_stays(tmp_path: Path) -> None:
    store = create(tmp_path / "run", keep=1, segment_bytes=100)
    train(store, 0, batch=0)
    key = issue(store, 1)
    offset = journal(store, key, payload(key))
    store.writer.sync()
    train(store, 2, batch=1)
    checkpoint(store, 2)
    store.ledger.ready(store.writer.receipt(key, offset))
    assert store.journal.read(offset) == payload(key)
    store.close()


@pytest.mark.parametrize("name", ["model/weights.bin", "optimizer.bin"])
@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (lambda path: path.write_bytes(b"v" + path.read_bytes()[1:]), "its sha256 is"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "it has 4999 bytes instead of 5000"),
        (lambda path: path.unlink(), "it is missing"),
    ],
)
def test_a_damaged_file_is_named_and_its_step_can_be_deleted(tmp_path: Path, name: str, harm, told: str) -> None:
    store = create(tmp_path / "run")
    keys = []
    for batch in range(2):
        keys.append(train(store, batch, batch=batch))
        checkpoint(store, batch + 1)
    store.close()
    folder = tmp_path / "run" / "checkpoints" / "step_2"
    harm(folder / name)
    again = reopen(tmp_path / "run")
    expected = f"{re.escape(str(folder / name))} is damaged .{told}.*delete the folder .*step_2 to resume from step_1"
    with pytest.raises(RunDamaged, match=expected):
        again.checkpoints.restore()
    again.close()

    for path in [*folder.rglob("*")][::-1]:
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
    third = reopen(tmp_path / "run")
    restored = third.checkpoints.restore()
    assert (restored.number, restored.missing) == (1, [folder])
    assert [row.key for row in restored.ready] == [keys[1]]
    assert third.journal.read(restored.ready[0].offset) == payload(keys[1])
    third.ledger.train([keys[1]], batch=1)
    checkpoint(third, 2, branch=restored.branch)
    third.close()


def test_a_lone_checkpoint_that_is_gone_falls_back_to_version_0(tmp_path: Path) -> None:
    store = create(tmp_path / "run", keep=2)
    key = train(store, 0, batch=0)
    prepared = checkpoint(store, 1)
    store.close()
    (prepared.path / "optimizer.bin").write_bytes(b"")
    again = reopen(tmp_path / "run")
    with pytest.raises(RunDamaged, match="to resume from version 0, the initial model"):
        again.checkpoints.restore()
    prepared.path.rename(tmp_path / "elsewhere")
    restored = again.checkpoints.restore()
    assert (restored.number, restored.path) == (0, None)
    assert again.journal.read(restored.ready[0].offset) == payload(key)
    again.close()


def test_no_checkpoint_left_is_told(tmp_path: Path) -> None:
    store = create(tmp_path / "run", keep=1)
    prepared = checkpoint(store, 1)
    store.close()
    (prepared.path / "optimizer.bin").write_bytes(b"")
    again = reopen(tmp_path / "run")
    with pytest.raises(RunDamaged, match="no older checkpoint is kept, so start the run again with --fresh"):
        again.checkpoints.restore()
    prepared.path.rename(tmp_path / "elsewhere")
    with pytest.raises(RunDamaged, match=r"step_1 are gone, and no older one is kept.*--fresh"):
        again.checkpoints.restore()
    again.close()


def test_a_commit_without_files_settles_what_was_recorded(tmp_path: Path) -> None:
    """Of a run without a trainer: its restore goes on with the next batch, and keeps every group."""
    store = create(tmp_path / "run", keep_journal=True)
    keys = [train(store, batch, batch=batch) for batch in range(3)]
    for number in (1, 2):
        store.checkpoints.commit_recorded(branch=0, number=number)
    store.close()
    again = reopen(tmp_path / "run", keep_journal=True)
    restored = again.checkpoints.restore()
    assert (restored.number, restored.path, steps(again)) == (2, None, [])
    assert [row.key for row in restored.ready] == keys[2:]
    assert [row.key for row in again.ledger.attempts("trained")] == keys[:2]
    with pytest.raises(IllegalTransition, match="cannot train in batch 1: the checkpoint of version 2"):
        again.ledger.train([keys[2]], batch=1)
    again.close()
