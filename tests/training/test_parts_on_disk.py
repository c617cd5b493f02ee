"""A version on disk that several write together: whole once all have, and nobody's before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from allocated import Allocated

from headrace.training import parts_on_disk
from headrace.training.parts_on_disk import OpenFolder, PartsOnDisk
from headrace.weights.disk import DiskPublisher
from headrace.weights.manifest import build_manifest
from headrace.weights.plane import Snapshot, WeightError
from headrace.weights.version import Version

ONE, TWO, THREE = (Version(0, number) for number in (1, 2, 3))
OUTLINES = {
    "n": torch.empty(3, device="meta"),
    "w": torch.empty(64, 50, dtype=torch.bfloat16, device="meta"),
    "s": torch.empty((), dtype=torch.bfloat16, device="meta"),
}


def begun(publisher: DiskPublisher, version: Version) -> tuple[Snapshot, OpenFolder]:
    manifest = build_manifest(version, OUTLINES, checksums=False)
    opened = OpenFolder(str(publisher.begin(manifest)))
    PartsOnDisk(OUTLINES).lay_out(opened)
    return Snapshot(manifest, {}), opened


def write(opened: OpenFolder, whole: dict[str, torch.Tensor], rows: slice) -> int:
    boxes = [("w", (rows.start, 0), whole["w"][rows])]
    if rows.start == 0:
        boxes += [("n", (0,), whole["n"]), ("s", (), whole["s"])]
    return PartsOnDisk(OUTLINES).write(opened, boxes)


def masters(seed: int) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return {name: torch.randn(one.shape, generator=made) for name, one in OUTLINES.items()}


def test_boxes_of_ranks_are_the_version_once_it_is_sent(tmp_path: Path) -> None:
    """Float32 masters become the version's dtypes. What one publishes that way and what a whole one is, are the same
    files to whoever receives them, with checksums; nobody has more than its part and the largest tensor."""
    publisher, whole = DiskPublisher(tmp_path / "parts"), masters(0)
    snapshot, opened = begun(publisher, ONE)
    with Allocated() as allocated:
        written = [write(opened, whole, slice(first, first + 32)) for first in (0, 32)]
    assert written == [4 * 3 + 2 * 32 * 50 + 2, 2 * 32 * 50]
    assert allocated.peak <= 2 * 32 * 50
    assert publisher.receiver().latest() is None
    with Allocated() as allocated:
        manifest = publisher.send(snapshot)
    assert allocated.peak <= 2 * 64 * 50
    given = {name: whole[name].to(one.dtype) for name, one in OUTLINES.items()}
    assert manifest == DiskPublisher(tmp_path / "whole").publish(ONE, given.items())
    found, tensors = publisher.receiver().receive()
    assert found == manifest
    assert all(torch.equal(tensors[name], tensor) for name, tensor in given.items())


def test_what_was_never_whole_goes_with_the_next(tmp_path: Path) -> None:
    """One of its writers is lost; the version before stays. It is begun again, and then sent."""
    publisher, whole = DiskPublisher(tmp_path), masters(1)
    snapshot, opened = begun(publisher, ONE)
    for first in (0, 32):
        write(opened, masters(0), slice(first, first + 32))
    publisher.send(snapshot)
    _, opened = begun(publisher, TWO)
    write(opened, whole, slice(0, 32))
    assert publisher.receiver().latest() == ONE
    other = DiskPublisher(tmp_path)  # of another life
    snapshot, again = begun(other, THREE)
    with pytest.raises(WeightError, match=r"cannot be written: .*No such file"):
        write(opened, whole, slice(32, 64))
    for first in (0, 32):
        write(again, whole, slice(first, first + 32))
    other.send(snapshot)
    manifest, tensors = other.receiver().receive()
    assert manifest.version == THREE
    assert torch.equal(tensors["w"], whole["w"].bfloat16())
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["0-1", "0-3"]


def test_a_branch_that_was_left_begins_nothing(tmp_path: Path) -> None:
    DiskPublisher(tmp_path).publish(Version(1, 1), [("n", torch.zeros(3))])
    with pytest.raises(WeightError, match="belongs to a branch that was left"):
        begun(DiskPublisher(tmp_path), TWO)


def test_a_disk_without_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, opened = begun(DiskPublisher(tmp_path), ONE)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parts_on_disk.PartedFiles, "write", full)
    with pytest.raises(WeightError, match="No space left on device; make room there"):
        write(opened, masters(0), slice(0, 32))


def test_what_was_begun_is_not_taken_for_another_version(tmp_path: Path) -> None:
    """Ranks have written what was given up then; the next version comes whole."""
    publisher = DiskPublisher(tmp_path)
    _, opened = begun(publisher, ONE)
    for first in (0, 32):
        write(opened, masters(0), slice(first, first + 32))
    given = {name: masters(1)[name].to(one.dtype) for name, one in OUTLINES.items()}
    publisher.publish(TWO, given.items())
    manifest, tensors = publisher.receiver().receive()
    assert manifest.version == TWO
    assert torch.equal(tensors["w"], given["w"])
