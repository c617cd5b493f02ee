"""The best checkpoint: named by one transaction, kept beside the newest, and never in the journal's way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from store_helpers import checkpoint, create, reopen, train

from headrace.store import Best, RunReader, RunStore, StoreError


def folders(store: RunStore) -> list[str]:
    return sorted(path.name for path in (store.path / "checkpoints").iterdir())


def link(store: RunStore) -> str | None:
    path = store.path / "checkpoints" / "best"
    return os.readlink(path) if path.is_symlink() else None


def test_the_best_outlives_newer_ones_until_another_is_best(tmp_path: Path) -> None:
    store = create(tmp_path / "run", keep=1)
    for number in (1, 2):
        checkpoint(store, number)
    store.checkpoints.keep_as_best(2, metric="eval/mean", value=0.5)
    for number in (3, 4):
        checkpoint(store, number)
    assert folders(store) == ["best", "step_2", "step_4"]
    assert link(store) == "step_2"
    assert (store.path / "checkpoints" / "best" / "model" / "weights.bin").is_file()
    store.checkpoints.keep_as_best(4, metric="eval/mean", value=0.6)
    assert folders(store) == ["best", "step_4"]
    assert store.checkpoints.best == Best(4, 0, "step_4", "eval/mean", 0.6)
    with RunReader(store.path) as reader:
        assert reader.best() == store.checkpoints.best
        assert reader.checkpoints() == {4: "step_4"}
    with pytest.raises(StoreError, match="no checkpoint of version 2 to keep"):
        store.checkpoints.keep_as_best(2, metric="eval/mean", value=0.7)
    store.close()


def test_one_that_is_held_stays_until_it_is_released(tmp_path: Path) -> None:
    store = create(tmp_path / "run", keep=1)
    store.checkpoints.hold(1)
    for number in (1, 2, 3):
        checkpoint(store, number)
    assert folders(store) == ["step_1", "step_3"]
    store.checkpoints.release(1)
    checkpoint(store, 4)
    assert folders(store) == ["step_4"]
    store.close()


def test_an_old_best_is_nothing_to_go_back_to_and_holds_no_journal(tmp_path: Path) -> None:
    store = create(tmp_path / "run", keep=1, segment_bytes=200)
    for batch in range(4):
        train(store, batch, batch=batch, size=150)
        checkpoint(store, batch + 1)
        if batch == 0:
            store.checkpoints.keep_as_best(1, metric="eval/mean", value=0.5)
    assert store.journal.segments()[0].number > 1, "groups of batches since the best are settled"
    store.close()
    again = reopen(tmp_path / "run", keep=1)
    restored = again.checkpoints.restore()
    assert (restored.number, restored.path) == (4, again.path / "checkpoints" / "step_4")
    assert folders(again) == ["best", "step_1", "step_4"]
    assert again.checkpoints.best is not None
    again.close()


@pytest.mark.parametrize("damage", ["the link is old", "the link is gone", "a folder is left"])
def test_after_a_crash_the_record_is_what_counts(tmp_path: Path, damage: str) -> None:
    """Killed between the transaction and the link, or between the link and the removal of the one before."""
    store = create(tmp_path / "run", keep=1)
    for number in (1, 2):
        checkpoint(store, number)
        store.checkpoints.keep_as_best(number, metric="eval/mean", value=number)
    store.close()
    checkpoints = tmp_path / "run" / "checkpoints"
    if damage == "a folder is left":
        (checkpoints / "step_1").mkdir()
    else:
        (checkpoints / "best").unlink()
    if damage == "the link is old":
        (checkpoints / "best").symlink_to("step_1")
    again = reopen(tmp_path / "run", keep=1)
    again.checkpoints.restore()
    assert (folders(again), link(again)) == (["best", "step_2"], "step_2")
    again.close()


def test_a_best_that_a_restore_took_back_or_that_is_gone_is_none(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    for number in (1, 2):
        checkpoint(store, number)
    store.checkpoints.keep_as_best(2, metric="eval/mean", value=0.5)
    (store.path / "checkpoints" / "step_2").rename(tmp_path / "aside")
    store.close()
    again = reopen(tmp_path / "run")
    assert again.checkpoints.restore().number == 1
    assert (again.checkpoints.best, link(again)) == (None, None)
    again.close()


def test_the_initial_model_can_be_the_best_and_has_no_files(tmp_path: Path) -> None:
    store = create(tmp_path / "run", keep=1)
    store.checkpoints.keep_as_best(0, metric="eval/mean", value=0.5)
    checkpoint(store, 1)
    assert store.checkpoints.best == Best(0, 0, None, "eval/mean", 0.5)
    assert folders(store) == ["step_1"]
    store.close()
