"""What vLLM's plugin finds where a version is published: whole, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from headrace_vllm.publication import PublicationError, opened

from headrace.weights.disk import DiskPublisher
from headrace.weights.shm import ShmPublisher
from headrace.weights.slots import SlotPublisher
from headrace.weights.version import Version

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.arange(5.0).to(torch.bfloat16), "c": torch.ones(())}
MANIFEST, WEIGHTS = "manifest.json", "weights.safetensors"


class Checking(ShmPublisher):
    """As on a machine whose processors do not see each other's writes in their order."""

    checks_arrival = True


def on_disk(path: Path, *numbers: int) -> str:
    publisher = DiskPublisher(path)
    for number in numbers:
        publisher.send(publisher.snapshot(Version(0, number), TENSORS.items()))
    return publisher.address


def in_memory(path: Path, publisher: type[SlotPublisher]) -> str:
    made = publisher(path)
    made.send(made.snapshot(Version(0, 1), TENSORS.items()))
    return made.address


def spoil(file: Path, byte: int) -> None:
    data = bytearray(file.read_bytes())
    data[byte] ^= 1
    file.write_bytes(data)


def same(found: object) -> bool:
    assert isinstance(found, dict)
    return found.keys() == TENSORS.keys() and all(torch.equal(found[name], each) for name, each in TENSORS.items())


def test_a_version_on_disk_is_read_and_falls_once_it_is_removed(tmp_path: Path) -> None:
    address = on_disk(tmp_path, 1, 2)
    found = opened("disk", address, 0, 1)
    assert same(found.tensors)
    assert found.stands()
    on_disk(tmp_path, 3)
    assert not found.stands()
    with pytest.raises(PublicationError, match=r"version 0\.1 cannot be read"):
        opened("disk", address, 0, 1)


def test_a_damaged_tensor_is_told_by_whichever_process_looks_at_it(tmp_path: Path) -> None:
    address = on_disk(tmp_path, 1)
    spoil(tmp_path / "0-1" / WEIGHTS, -1)
    with pytest.raises(PublicationError, match=r"'[abc]' is damaged: its checksum differs"):
        opened("disk", address, 0, 1)
    told = []
    for rank in range(2):
        try:
            opened("disk", address, 0, 1, rank=rank, ranks=2)
        except PublicationError:
            told.append(rank)
    assert len(told) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": [0, 2]}, r"is of version \[0, 2\], and not 0\.1"),
        ({"entries": []}, r"has '[abc]' in its manifest or in its tensors alone"),
        ({"shape": [3, 2]}, r"'a' is torch\.float32\[2, 3\], and was published as float32\[3, 2\]"),
        ({"dtype": "int32"}, r"'a' is torch\.float32\[2, 3\], and was published as int32"),
        ({"dtype": "load"}, r"has the dtype 'load', which torch does not know"),
        ({"checksum": 1}, r"'a' is damaged"),
    ],
)
def test_what_is_not_as_its_manifest_says_is_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    address = on_disk(tmp_path, 1)
    file = tmp_path / "0-1" / MANIFEST
    manifest = json.loads(file.read_bytes())
    assert manifest["entries"][0]["name"] == "a"
    (manifest if change.keys() & manifest.keys() else manifest["entries"][0]).update(change)
    file.write_text(json.dumps(manifest))
    with pytest.raises(PublicationError, match=words):
        opened("disk", address, 0, 1)


@pytest.mark.parametrize("file", [MANIFEST, WEIGHTS])
@pytest.mark.parametrize("text", [None, b"", b"{}"])
def test_what_is_no_file_of_a_version_is_refused(tmp_path: Path, file: str, text: bytes | None) -> None:
    address = on_disk(tmp_path, 1)
    path = tmp_path / "0-1" / file
    path.unlink()
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(PublicationError, match=r"version 0\.1 cannot be read at "):
        opened("disk", address, 0, 1)


def test_a_slot_is_read_and_its_checksum_holds_where_there_is_one(tmp_path: Path) -> None:
    for name, publisher in (("plain", ShmPublisher), ("checked", Checking)):
        (tmp_path / name).mkdir()
        address = in_memory(tmp_path / name, publisher)
        assert same(opened("shm", address, 0, 1).tensors)
    with pytest.raises(PublicationError, match=r"version 0\.2 is not at .*: there are 0\.1, 0\.0"):
        opened("shm", address, 0, 2)
    spoil(tmp_path / "checked" / "slot-0", 4096)
    with pytest.raises(PublicationError, match=r"version 0\.1 is not whole at .*: its checksum differs"):
        opened("shm", address, 0, 1)


def test_another_transport_cannot_reach_vllm(tmp_path: Path) -> None:
    with pytest.raises(PublicationError, match="weights come by 'cuda_ipc'"):
        opened("cuda_ipc", str(tmp_path), 0, 1)
