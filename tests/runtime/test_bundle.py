"""Columns of several refs in one frame."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.inline import InlineRuntime
from headrace.runtime.local.service import Service
from headrace.runtime.process import bundle
from headrace.runtime.process.bundle import Kept, bundled, unbundled
from headrace.runtime.process.frames import FrameError
from headrace.runtime.process.kept import Links, SegmentRefs
from headrace.runtime.process.listener import Server
from headrace.runtime.process.shared_memory import Segments, remove
from headrace.runtime.process.site import socket_path
from headrace.runtime.refs import RefLost
from headrace.runtime.wire.wire_format import Parcel
from headrace.runtime.workers import BASE_TYPES, WorkerError, WorkerLost

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


def test_more_than_one_frame_has_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MOST", 1000)
    assert len(unbundled(bundled([kept(b"x" * 2000)] * 3), FOLDER)) == 1, "one at least"

    async def main() -> None:
        async with links_to_one_who_keeps(tmp_path) as (own, links):
            refs = [own.put({"number": number}) for number in range(30)]
            own.free(refs[7])
            with pytest.raises(RefLost):
                await links.fetch(refs)
            del refs[7]
            found = await links.fetch(refs)
            assert [links.opened(found[ref])["number"] for ref in refs] == [n for n in range(30) if n != 7]

    asyncio.run(main())


def test_one_who_cannot_map_what_is_shared_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object, **how: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def main() -> None:
        async with links_to_one_who_keeps(tmp_path) as (own, links):
            ref = own.put({"x": np.zeros(40000)})
            with monkeypatch.context() as patch:
                patch.setattr(bundle, "read", fails)
                with pytest.raises(WorkerError, match="Too many open files"):
                    await asyncio.wait_for(links.fetch([ref]), 10)
            assert len(await links.fetch([ref])) == 1, "the way to it stays"

    asyncio.run(main())


@asynccontextmanager
async def links_to_one_who_keeps(folder: Path) -> AsyncIterator[tuple[SegmentRefs, Links]]:
    runtime = InlineRuntime(copying=False)
    segments = Segments(folder / "keeper")
    own = SegmentRefs("keeper", 0, BASE_TYPES, segments)

    def nobody(worker: str) -> Service:
        raise WorkerLost(0, "there is none", worker=worker)

    server = Server(runtime, lambda: BASE_TYPES, segments, folder, find=nobody, shown=own)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(socket_path(folder, "keeper")))
        listening.listen(1)
        answering = await server.listen(listening)
        links = Links(folder, lambda: BASE_TYPES, Segments(folder / "reader"), runtime)
        try:
            yield own, links
        finally:
            links.close()
            answering.close()
            await runtime.close()


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
