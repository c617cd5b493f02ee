"""Columns of several refs in one frame."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.process.bundle import Kept, bundled, unbundled
from headrace.runtime.process.frames import FrameError
from headrace.runtime.process.shared_memory import Segments, remove
from headrace.runtime.wire.wire_format import Parcel

FOLDER = Path("/nowhere")


def kept(envelope: bytes, *buffers: bytes) -> Kept:
    return Kept(Parcel(envelope, [memoryview(each) for each in buffers]))


def as_bytes(parcel: Parcel | None) -> tuple[bytes, list[bytes]] | None:
    return None if parcel is None else (parcel.envelope, [bytes(each) for each in parcel.buffers])


PARTS = st.none() | st.tuples(st.binary(max_size=8), st.lists(st.binary(max_size=8), max_size=3))


@given(st.lists(PARTS, max_size=6))
def test_what_comes_is_what_was_kept_in_its_order(parts: list[tuple[bytes, list[bytes]] | None]) -> None:
    body = bundled([None if part is None else kept(part[0], *part[1]) for part in parts])
    assert [as_bytes(each) for each in unbundled(body, FOLDER)] == parts


def test_what_is_shared_is_mapped_and_what_was_freed_is_none(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    here, gone = (segments.write([memoryview(bytes([0, 1, 2])), memoryview(bytes(8))]) for _ in range(2))
    body = bundled([Kept(Parcel(b"one"), here), kept(b"two", b"xyz"), Kept(Parcel(b"three"), gone)])
    remove(gone.path)
    assert [as_bytes(each) for each in unbundled(body, tmp_path)] == [
        (b"one", [bytes([0, 1, 2]), bytes(8)]),
        (b"two", [b"xyz"]),
        None,
    ]


@pytest.mark.parametrize(
    ("envelope", "buffers"),
    [
        (b"\xc1", []),  # no msgpack
        (msgpack.packb(3), []),
        (msgpack.packb([3]), []),
        (msgpack.packb([["text", 0, None]]), []),
        (msgpack.packb([[b"", -1, None]]), []),
        (msgpack.packb([[b"", 0, None]]), [b"nobody's"]),
        (msgpack.packb([[b"", 2, None]]), [b"one"]),
        (msgpack.packb([[b"", 0, ["/etc/hostname", [[0, 1]]]]]), []),
        (msgpack.packb([[b"", 0, ["/nowhere/../etc/hostname", [[0, 1]]]]]), []),
        (msgpack.packb([[b"", 0, ["/nowhere/0", 3]]]), []),
    ],
)
def test_what_makes_no_sense_is_refused(envelope: bytes, buffers: list[bytes]) -> None:
    with pytest.raises(FrameError):
        unbundled(Parcel(envelope, [memoryview(each) for each in buffers]), FOLDER)
