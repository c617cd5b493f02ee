"""Large files of weights, told apart by samples."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace.runtime import file_digests
from headrace.runtime.file_digests import digest, digests, sampled_digest

_SIZES = {"embed": 3_000_000, "norm": 64, "up": 900_000, "last": 64}


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return weights(tmp_path / "first.safetensors", _SIZES)


def weights(path: Path, sizes: Mapping[str, int], changed: Sequence[str] = ()) -> Path:
    """Of 16 MB; those of the tensors that are `changed` are others."""
    save_file({name: np.full(size, 1.0 + (name in changed), np.float32) for name, size in sizes.items()}, path)
    return path


@pytest.mark.parametrize("name", _SIZES)
def test_a_tensor_that_is_another_is_seen_however_small_it_is(name: str, first: Path, tmp_path: Path) -> None:
    other = weights(tmp_path / "other.safetensors", _SIZES, [name])
    assert other.stat().st_size == first.stat().st_size > 8 << 20
    assert sampled_digest(other) != sampled_digest(first)


def test_a_copy_is_the_same(first: Path, tmp_path: Path) -> None:
    assert sampled_digest(weights(tmp_path / "copy.safetensors", _SIZES)) == sampled_digest(first)


def test_names_and_sizes_count(first: Path, tmp_path: Path) -> None:
    renamed = weights(tmp_path / "renamed.safetensors", {"embad" if n == "embed" else n: s for n, s in _SIZES.items()})
    cut, longer = tmp_path / "cut", tmp_path / "longer"
    cut.write_bytes(first.read_bytes()[:-1])
    longer.write_bytes(first.read_bytes() + b"\0")
    assert len({sampled_digest(each) for each in (first, renamed, cut, longer)}) == 4


def test_of_many_tensors_some_have_samples_of_their_own(tmp_path: Path) -> None:
    sizes = {f"{number:04}": 2000 for number in range(2000)}
    one, other = weights(tmp_path / "one", sizes), weights(tmp_path / "other", sizes, [*sizes][::4])
    assert sampled_digest(one) != sampled_digest(other)


@pytest.mark.parametrize(
    "begin",
    [
        b"",
        (1 << 63).to_bytes(8, "little"),
        (2).to_bytes(8, "little") + b"[]",
        (9).to_bytes(8, "little") + b'{"a":null',
        (20).to_bytes(8, "little") + b'{"a":{"data_offsets"',
        (31).to_bytes(8, "little") + b'{"a":{"data_offsets":[-9,999]}}',
        (34).to_bytes(8, "little") + b'{"a":{"data_offsets":[-9,1e9999]}}',
        (9 << 20).to_bytes(8, "little") + b"[" * (9 << 20),
    ],
)
def test_what_is_no_safetensors_file_has_one_too(begin: bytes, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(begin + bytes(9 << 20))
    other.write_bytes(begin + b"\1" * (9 << 20))
    assert sampled_digest(one) != sampled_digest(other)


def test_a_small_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(bytes(5 << 20))
    found = sampled_digest(path)
    path.write_bytes(bytes(3 << 20) + b"\1" + bytes((2 << 20) - 1))
    assert sampled_digest(path) != found


def test_of_a_file_of_any_size_a_few_mebibytes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read, took = weights(tmp_path / "large.safetensors", _SIZES), [0], time.monotonic()
    with path.open("r+b") as file:
        file.truncate(60 << 30)  # it takes no room on a disk

    def counted(*asked: object) -> bytes:
        found = of_file(*asked)  # type: ignore[arg-type]
        read[0] += len(found)
        return found

    of_file = file_digests._read
    monkeypatch.setattr(file_digests, "_read", counted)
    sampled_digest(path)
    assert 1 << 20 < read[0] < 6 << 20
    assert time.monotonic() - took < 10


def test_those_that_cannot_be_read_are_left_out(first: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.json"
    small.write_text("{}")
    nowhere = str(tmp_path / "nowhere")
    assert digests([str(small), nowhere, str(tmp_path)], [str(first), nowhere]) == {
        str(small): digest(small),
        str(first): sampled_digest(first),
    }
    assert digests([], []) == {}
