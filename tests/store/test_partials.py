"""Groups that were begun, as files of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.store import StoreError
from headrace.store.media.memory_files import MemoryFiles
from headrace.store.partials import Partials


def test_what_was_written_is_read_until_it_is_removed(tmp_path: Path) -> None:
    partials = Partials(tmp_path / "partial")
    assert partials.keys() == []
    assert partials.read((0, 1, 0)) is None
    assert partials.read_notes() is None
    partials.write((0, 1, 0), b"one")
    partials.write((0, 10, 2), b"two")
    partials.write((0, 1, 0), b"more")
    partials.write_notes(b"{}")
    assert partials.keys() == [(0, 1, 0), (0, 10, 2)]
    assert (partials.read((0, 1, 0)), partials.read((0, 10, 2)), partials.read_notes()) == (b"more", b"two", b"{}")
    partials.remove((0, 1, 0))
    partials.remove((0, 1, 0))
    assert (partials.has((0, 1, 0)), partials.has((0, 10, 2))) == (False, True)
    partials.keep([])
    assert partials.keys() == []
    assert partials.read_notes() == b"{}"


def test_notes_of_an_evaluation_are_by_set_and_beside_those_of_training(tmp_path: Path) -> None:
    partials = Partials(tmp_path / "partial")
    sets = ("eval", "gsm8k-hard", "Math_2", "../a")
    partials.write_notes(b"{}")
    for name in sets:
        assert partials.read_notes(name) is None
        partials.write_notes(name.encode(), name)
    assert [partials.read_notes(name) for name in (None, *sets)] == [b"{}", *(name.encode() for name in sets)]
    assert len(list((tmp_path / "partial").iterdir())) == 5, "none is elsewhere"
    partials.keep([])
    assert (partials.keys(), partials.read_notes("eval")) == ([], b"eval")


def test_what_was_written_survives_a_power_cut() -> None:
    run = Path("/run")
    files = MemoryFiles()
    files.make_folder(run)
    files.sync(run.parent)
    partials = Partials(run / "partial", files)
    partials.write((0, 1, 0), b"one")
    partials.write((0, 1, 0), b"more")
    partials.write_notes(b"{}")
    left = Partials(run / "partial", files.after_power_cut(lambda count: 0))
    assert (left.read((0, 1, 0)), left.read_notes()) == (b"more", b"{}")


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    partials = Partials(tmp_path / "partial")
    partials.write((0, 1, 0), b"one")
    for name in ("0-1-0.group.new", "notes.txt", "0-1.group"):
        (tmp_path / "partial" / name).write_text("")
    partials.keep([])
    assert sorted(path.name for path in (tmp_path / "partial").iterdir()) == [
        "0-1-0.group.new",
        "0-1.group",
        "notes.txt",
    ]


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "partial").write_text("a file")
    with pytest.raises(StoreError, match="partial"):
        Partials(tmp_path / "partial").write((0, 1, 0), b"one")
