"""Folders that belong to who holds their lock."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

import pytest

from headrace.runtime import owned_folders
from headrace.runtime.owned_folders import make_owned, remove_owned, sweep


def test_one_that_was_swept_before_it_was_locked_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    flock = fcntl.flock

    def make() -> Path:
        made.append(tmp_path / f"own-{len(made)}")
        made[-1].mkdir()
        return made[-1]

    def swept(descriptor: int, how: int) -> None:
        if len(made) == 1 and made[0].exists():
            shutil.rmtree(made[0])  # by somebody who took it for a dead one's
        flock(descriptor, how)

    monkeypatch.setattr(owned_folders.fcntl, "flock", swept)
    folder, lock = make_owned(make)
    assert folder == tmp_path / "own-1"
    assert folder.exists()
    remove_owned(folder, lock)
    assert not folder.exists()


def test_what_nobody_holds_any_more_is_swept_and_nothing_else(tmp_path: Path) -> None:
    held, lock = make_owned(lambda: _made(tmp_path / "own-held"))
    dead, other = make_owned(lambda: _made(tmp_path / "own-dead"))
    other.close()
    _made(tmp_path / "own-without-lock")
    _made(tmp_path / "elsewhere")
    (tmp_path / "own-link").symlink_to(tmp_path / "elsewhere")
    sweep(tmp_path, "own-")
    assert not dead.exists()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["elsewhere", "own-held", "own-link", "own-without-lock"]
    remove_owned(held, lock)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
