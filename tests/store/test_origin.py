"""What a run takes of another that goes on: all of a checkpoint, or nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from store_helpers import checkpoint, create

from headrace.store import RunDamaged, RunMissing, origin
from headrace.store.origin import Origin, find_origin, take_origin


@pytest.fixture
def found(tmp_path: Path) -> Origin:
    """A run's newest checkpoint, which has files of 5,000 bytes: `model/weights.bin` and `optimizer.bin`."""
    store = create(tmp_path / "other")
    checkpoint(store, 4)
    store.close()
    (tmp_path / "run").mkdir()
    return find_origin(str(tmp_path / "other"))


def before(call: Callable[..., Any], act: Callable[[], object]) -> Callable[..., Any]:
    def both(*given: Any) -> Any:
        act()
        return call(*given)

    return both


def taken(run: Path) -> list[str]:
    return sorted(path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file())


WHOLE = ["origin/manifest.json", "origin/model/weights.bin", "origin/optimizer.bin"]


def test_a_checkpoint_that_its_run_removes_while_it_is_read_is_taken_whole(
    tmp_path: Path, found: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = partial(shutil.rmtree, found.path, ignore_errors=True)
    monkeypatch.setattr(origin, "sha256_of", before(origin.sha256_of, remove))
    own = take_origin(found, tmp_path / "run")
    assert (own.name, taken(tmp_path / "run")) == (f"{tmp_path / 'other'}@4", WHOLE)


@pytest.mark.parametrize("links", [0, 1, 2])
def test_one_that_goes_sooner_is_told(
    tmp_path: Path, found: Origin, monkeypatch: pytest.MonkeyPatch, links: int
) -> None:
    left = [links]

    def count() -> None:
        if not left[0]:
            shutil.rmtree(found.path, ignore_errors=True)
        left[0] -= 1

    monkeypatch.setattr(os, "link", before(os.link, count))
    with pytest.raises(
        RunMissing, match=r"--from .*other@4: .*step_4 went while it was taken.* begin from a newer one"
    ):
        take_origin(found, tmp_path / "run")
    assert taken(tmp_path / "run") == []


@pytest.mark.parametrize("gone", ["manifest.json", "optimizer.bin"])
def test_one_of_which_files_went_before_they_were_looked_for_is_told(
    tmp_path: Path, found: Origin, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    (found.path / gone).unlink()
    remove = partial(shutil.rmtree, found.path, ignore_errors=True)
    monkeypatch.setattr(origin, "sha256_of", before(origin.sha256_of, remove))
    with pytest.raises(RunMissing, match="went while it was taken"):
        take_origin(found, tmp_path / "run")
    assert taken(tmp_path / "run") == []


def test_one_that_was_stripped_by_hand_is_taken_as_it_is(tmp_path: Path, found: Origin) -> None:
    (found.path / "optimizer.bin").unlink()
    take_origin(found, tmp_path / "run")
    assert taken(tmp_path / "run") == WHOLE[:2]


def test_a_damaged_one_is_told_by_the_name_of_its_file(tmp_path: Path, found: Origin) -> None:
    weights = found.path / "model" / "weights.bin"
    weights.write_bytes(b"v" * 5000)
    with pytest.raises(RunDamaged, match=f"{weights} is damaged"):
        take_origin(found, tmp_path / "run")
    assert taken(tmp_path / "run") == []
