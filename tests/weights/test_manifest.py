"""Manifests: round trip, and every difference is found."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.weights.manifest import build_manifest, from_json, to_json, verify
from headrace.weights.plane import WeightError
from headrace.weights.version import Version

VERSION = Version(1, 7)


def tensors() -> dict[str, torch.Tensor]:
    return {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[1.0]], dtype=torch.bfloat16)}


def test_manifest_lists_names_shapes_dtypes_and_crc32_of_the_bytes() -> None:
    a, b = build_manifest(VERSION, tensors()).entries
    assert (a.name, a.shape, a.dtype) == ("a", (2,), "float32")
    assert a.checksum == zlib.crc32(np.array([1.0, 2.0], dtype="<f4").tobytes())
    assert (b.name, b.shape, b.dtype) == ("b", (1, 1), "bfloat16")
    assert b.checksum == zlib.crc32(b"\x80\x3f"), "1.0 in bfloat16 is 0x3f80"


def test_json_round_trip() -> None:
    for checksums in (True, False):
        manifest = build_manifest(VERSION, tensors(), checksums=checksums)
        assert from_json(to_json(manifest), "manifest.json") == manifest


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"version": [0], "entries": []}', b'{"version": [0, 1]}', b"\xff"]
)
def test_damaged_json_is_a_weight_error_that_names_the_file(text: bytes) -> None:
    with pytest.raises(WeightError, match=r"manifest\.json is no manifest"):
        from_json(text, "manifest.json")


def test_every_kind_of_difference_is_named() -> None:
    manifest = build_manifest(VERSION, tensors())
    verify(manifest, tensors(), "here")
    for change, said in (
        ({"c": torch.ones(1)}, "here holds tensors that v7~1 does not list, as 'c'"),
        ({"a": torch.ones(3)}, r"'a' of v7~1 is float32\[3\], published as float32\[2\]"),
        ({"a": torch.tensor([1, 2])}, r"is int64\[2\], published as float32\[2\]"),
        ({"b": torch.tensor([[2.0]], dtype=torch.bfloat16)}, "'b' of v7~1 is damaged"),
    ):
        with pytest.raises(WeightError, match=said):
            verify(manifest, {**tensors(), **change}, "here")
    with pytest.raises(WeightError, match="here lacks tensor 'b'"):
        verify(manifest, {"a": tensors()["a"]}, "here")


@settings(deadline=None)
@given(values=st.lists(st.integers(0, 255), min_size=1, max_size=64), data=st.data())
def test_one_flipped_bit_is_found(values: list[int], data: st.DataObject) -> None:
    sent = torch.tensor(values, dtype=torch.uint8)
    manifest = build_manifest(VERSION, {"w": sent})
    damaged = sent.clone()
    place = data.draw(st.integers(0, len(values) - 1))
    damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(WeightError, match="'w' of v7~1 is damaged"):
        verify(manifest, {"w": damaged}, "here")
