"""Weights in a folder: crashes, damage, pruning, and publishers of other processes."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headrace.training.following import Following
from headrace.weights import disk
from headrace.weights.disk import DiskPublisher, DiskReceiver
from headrace.weights.plane import ALL, Share, WeightError, WeightOffer
from headrace.weights.receiving import receiver_of
from headrace.weights.version import Version


def publish(folder: Path, number: int, branch: int = 0, keep: int = 2) -> None:
    DiskPublisher(folder, keep).publish(Version(branch, number), [("w", torch.full((100,), float(number)))])


def received(folder: Path) -> float:
    manifest, tensors = DiskReceiver(folder).receive()
    assert tensors["w"].tolist() == [float(manifest.version.number)] * 100
    return tensors["w"][0].item()


def folders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def test_only_the_newest_versions_are_kept(tmp_path: Path) -> None:
    for number in (8, 9, 10, 11):  # 10 sorts after 9 as a number, before it as text
        publish(tmp_path, number)
    assert folders(tmp_path) == ["0-10", "0-11"]
    publish(tmp_path, 5, branch=1, keep=1)
    assert folders(tmp_path) == ["1-5"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-5", "LATEST"]
    with pytest.raises(ValueError, match="keep is 0"):
        DiskPublisher(tmp_path, keep=0)


def test_publisher_of_a_branch_that_was_left_is_refused_by_what_the_folder_holds(tmp_path: Path) -> None:
    left_behind = DiskPublisher(tmp_path)
    left_behind.publish(Version(0, 12), [("w", torch.ones(1))])
    publish(tmp_path, 10, branch=1)
    with pytest.raises(WeightError, match="v13: it belongs to a branch that was left, v10~1"):
        left_behind.publish(Version(0, 13), [("w", torch.ones(1))])


@pytest.mark.parametrize("step", range(1, 9))
def test_crash_at_any_step_leaves_the_last_version_and_the_next_publication_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Every step that a publication takes on the folder dies once, as a killed process would: no clean-up."""
    publish(tmp_path, 1)
    count = 0

    class KilledError(BaseException):
        pass

    def counted(name: str, owner: object) -> None:
        original = getattr(owner, name)

        def step_or_die(*args: object, **kwargs: object) -> object:
            nonlocal count
            count += 1
            if count == step:
                raise KilledError
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, step_or_die)

    for name, owner in (("sync_path", disk), ("save_file", disk), ("rename", Path), ("replace", Path)):
        counted(name, owner)
    with pytest.raises(KilledError):
        publish(tmp_path, 2)
    monkeypatch.undo()
    assert received(tmp_path) == 1.0
    publish(tmp_path, 2)
    assert received(tmp_path) == 2.0
    publish(tmp_path, 3)
    assert not list(tmp_path.glob("making-*"))


def test_full_disk_is_one_error_and_leaves_the_last_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, 1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk, "save_file", full)
    with pytest.raises(WeightError, match=r"cannot publish v2 in .*No space left on device; make room") as caught:
        publish(tmp_path, 2)
    assert str(tmp_path) in str(caught.value)
    assert received(tmp_path) == 1.0
    assert folders(tmp_path) == ["0-1"]


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 0x10
    file.write_bytes(content)


def test_damage_is_found_and_the_file_named(tmp_path: Path) -> None:
    for damage in ("last byte", "header", "cut", "empty", "manifest", "other version"):
        folder = tmp_path / damage
        publish(folder, 1)
        publish(folder, 2)
        tensors, manifest = folder / "0-2" / "weights.safetensors", folder / "0-2" / "manifest.json"
        match damage:
            case "last byte":
                flip(tensors, -1)
            case "header":
                flip(tensors, 9)
            case "cut":
                tensors.write_bytes(tensors.read_bytes()[:-8])
            case "empty":
                tensors.write_bytes(b"")
            case "manifest":
                manifest.write_text("{}")
            case "other version":
                shutil.copy(folder / "0-1" / "manifest.json", manifest)
        with pytest.raises(WeightError) as caught:
            DiskReceiver(folder).receive()
        assert str(folder / "0-2") in str(caught.value), damage


@pytest.mark.parametrize("file", ["weights.safetensors", "manifest.json"])
def test_missing_file_is_named(tmp_path: Path, file: str) -> None:
    publish(tmp_path, 1)
    (tmp_path / "0-1" / file).unlink()
    with pytest.raises(WeightError, match=rf"v1 is not whole in .*{file}.*publish it again"):
        DiskReceiver(tmp_path).receive()


@pytest.mark.parametrize("text", [b"", b"latest", b"../../etc-1\n", b"1\n", b"\xff\xfe", b"0-1\n0-2\n"])
def test_damaged_pointer_is_named_by_both_ends(tmp_path: Path, text: bytes) -> None:
    publish(tmp_path, 1)
    (tmp_path / "LATEST").write_bytes(text)
    for act in (DiskReceiver(tmp_path).latest, DiskReceiver(tmp_path).receive, lambda: publish(tmp_path, 2)):
        with pytest.raises(WeightError, match=r"LATEST is damaged: .* remove it and publish again"):
            act()


def test_version_pruned_under_the_receiver_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, 1)
    original, calls = disk.load_file, []

    def slow(path: Path) -> dict[str, torch.Tensor]:
        calls.append(path)
        if len(calls) == 1:
            publish(tmp_path, 2)
            publish(tmp_path, 3)
        return original(path)

    monkeypatch.setattr(disk, "load_file", slow)
    assert received(tmp_path) == 3.0
    assert len(calls) == 2


def test_received_tensors_outlive_the_files(tmp_path: Path) -> None:
    publish(tmp_path, 1)
    _, tensors = DiskReceiver(tmp_path).receive()
    shutil.rmtree(tmp_path)
    assert tensors["w"].sum().item() == 100.0


def test_those_that_take_a_version_together_look_at_a_share_of_it_each(tmp_path: Path) -> None:
    """And each finds damage in its own. What none of them takes, or looks at, is not read: the file is mapped."""
    tensors = [(name, torch.full((100,), float(number))) for number, name in enumerate("abcde")]
    manifest = DiskPublisher(tmp_path).publish(Version(0, 1), tensors)
    taken = dict[str, torch.Tensor]()
    for number in range(3):
        received = DiskReceiver(tmp_path).receive_buckets(taken.update, 800, share=Share(number, 3))
        assert received.manifest == manifest
        assert torch.equal(torch.stack([*taken.values()]), torch.stack([tensor for _, tensor in tensors]))
    path = tmp_path / "0-1" / disk.TENSORS
    whole = bytearray(path.read_bytes())
    whole[-500] ^= 1  # of d, the fourth of five tensors of 400 bytes
    path.write_bytes(whole)
    for number in (1, 2):
        DiskReceiver(tmp_path).receive_buckets(taken.update, share=Share(number, 3))
    for share in (Share(0, 3), ALL):
        with pytest.raises(WeightError, match=r"'d' of v1 is damaged \(checksum differs\)"):
            DiskReceiver(tmp_path).receive_buckets(taken.update, share=share)
    offer = WeightOffer(Version(0, 1), "disk", str(tmp_path))
    for receiver in (receiver_of(offer), Following(lambda: ("disk", str(tmp_path)))):
        receiver.receive_buckets(taken.update, share=Share(1, 3))
        with pytest.raises(WeightError, match="'d' of v1 is damaged"):
            receiver.receive_as(lambda received: None)
    with pytest.raises(WeightError, match="v2 was offered, and v1 is the newest"):
        receiver_of(replace(offer, version=Version(0, 2))).receive_buckets(taken.update, share=Share(1, 3))
