"""Refs across processes: columns lie in the shared memory of whoever put them, and are mapped by whoever reads them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from headrace.runtime.local.local_refs import Keepers
from headrace.runtime.process.channel import Channel
from headrace.runtime.process.frames import Kind
from headrace.runtime.process.link import FETCH_S, Link
from headrace.runtime.process.shared_memory import Segment, Segments, read, remove
from headrace.runtime.process.site import socket_path
from headrace.runtime.protocol import Services
from headrace.runtime.refs import Ref, RefLost, Refs
from headrace.runtime.wire.wire_format import Parcel, pack, unpack
from headrace.runtime.wire.wire_types import WireTypes

SHARED = 1 << 16
"""Bytes from which on what is put lies in shared memory."""


@dataclass(frozen=True, slots=True)
class _Kept:
    parcel: Parcel
    """Without its buffers, if these are shared."""
    segment: Segment | None


class SegmentRefs:
    """What one worker process keeps. Of the event loop and of lanes alike."""

    def __init__(self, keeper: str, first: int, types: WireTypes, segments: Segments) -> None:
        self._keeper = keeper
        self._numbers = count(first)
        self._types = types
        self._segments = segments
        self._kept: dict[int, _Kept] = {}

    def put(self, columns: Mapping[str, Any]) -> Ref:
        """See `Refs.put`. Raises WireError."""
        parcel = pack(dict(columns), self._types, "the columns")
        if sum(map(len, parcel.buffers)) >= SHARED:
            kept = _Kept(Parcel(parcel.envelope), self._segments.write(parcel.buffers))
        else:
            copies = [memoryview(bytearray(buffer)) for buffer in parcel.buffers]
            kept = _Kept(Parcel(parcel.envelope, copies), None)
        ref = Ref(self._keeper, next(self._numbers), tuple(columns))
        self._kept[ref.number] = kept
        return ref

    def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """See `Refs.get`."""
        kept = self._of(ref)
        try:
            buffers = kept.parcel.buffers if kept.segment is None else read(kept.segment, take=False)
        except FileNotFoundError as error:
            raise RefLost(ref) from error
        columns = unpack(Parcel(kept.parcel.envelope, buffers), self._types, "the columns")
        return columns if names is None else {name: columns[name] for name in names}

    def free(self, ref: Ref) -> None:
        """See `Refs.free`."""
        kept = self._kept.pop(ref.number, None) if ref.keeper == self._keeper else None
        if kept is not None and kept.segment is not None:
            remove(kept.segment.path)

    async def show(self, ref: Ref, channel: Channel, call: int) -> None:
        """See `Shown.show`. Nothing is copied."""
        kept = self._of(ref)
        channel.show(call, kept.parcel, kept.segment)

    def _of(self, ref: Ref) -> _Kept:
        kept = self._kept.get(ref.number) if ref.keeper == self._keeper else None
        if kept is None:
            raise RefLost(ref)
        return kept


class ShownRefs:
    """What is kept in a process as objects, for others: a copy for each who asks."""

    def __init__(self, keepers: Keepers) -> None:
        self._keepers = keepers

    async def show(self, ref: Ref, channel: Channel, call: int) -> None:
        """See `Shown.show`."""
        await channel.send(Kind.ANSWER, call, dict(self._keepers.here(ref).get(ref)), "the columns")

    def free(self, ref: Ref) -> None:
        if ref.keeper in self._keepers:
            self._keepers.here(ref).free(ref)


class Links:
    """One to each process that was asked."""

    def __init__(self, folder: Path, types: Callable[[], WireTypes], segments: Segments, services: Services) -> None:
        self._folder = folder
        self._types = types
        self._segments = segments
        self._services = services
        self._open: dict[str, asyncio.Task[Link]] = {}

    async def to(self, name: str, rank: int = 0, *, address: str = "") -> Link:
        """Who is not in a process of its own is in the controller's. Raises OSError."""
        path = Path(address) if address else socket_path(self._folder, name)
        if not address and not path.exists():
            path = socket_path(self._folder, "")
        if path.parent != self._folder:
            raise ConnectionError(f"{path} is not in {self._folder}")
        key = f"{path} {name}"
        opening = self._open.get(key)
        if opening is None or (opening.done() and (opening.exception() or not opening.result().is_open)):
            link = Link.open(path, self._types(), self._segments, self._services, name, rank)
            opening = self._open[key] = self._services.spawn(link, f"link to {name}")
        return await asyncio.shield(opening)

    async def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """From whoever keeps it. Raises RefLost."""
        try:
            link = await self.to(ref.keeper)
        except OSError as error:
            raise RefLost(ref) from error
        return await link.fetch(ref, names)

    def free(self, ref: Ref) -> None:
        """Soon."""
        self._services.spawn(self._free(ref), "free a ref")

    def close(self) -> None:
        for opening in self._open.values():
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                opening.result().end("it was closed")
        self._open.clear()

    async def _free(self, ref: Ref) -> None:
        with contextlib.suppress(OSError):
            await (await self.to(ref.keeper)).free(ref)


class RefsElsewhere:
    """`Refs` of other processes, for lanes."""

    def __init__(self, links: Links, loop: asyncio.AbstractEventLoop) -> None:
        self._links = links
        self._loop = loop

    def put(self, columns: Mapping[str, Any]) -> Ref:
        """Nobody puts what another keeps."""
        raise NotImplementedError

    def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """See `Refs.get`. Raises RuntimeError in the event loop."""
        if asyncio._get_running_loop() is self._loop:
            raise RuntimeError(f"this blocks on {ref.keeper or 'the controller'}; in a coroutine: await host.get(ref)")
        return asyncio.run_coroutine_threadsafe(self._links.get(ref, names), self._loop).result(2 * FETCH_S)

    def fetched(self, refs: Collection[Ref]) -> Mapping[Ref, Mapping[str, Any]]:
        """See `FarRefs.fetched`. Raises RuntimeError in the event loop."""
        if not refs:
            return {}
        if asyncio._get_running_loop() is self._loop:
            raise RuntimeError("this blocks; in a coroutine: await host.get(ref)")

        async def all_of_them() -> list[Any]:
            return await asyncio.gather(*(self._links.get(ref) for ref in refs), return_exceptions=True)

        found = asyncio.run_coroutine_threadsafe(all_of_them(), self._loop).result(2 * FETCH_S)
        if error := next((each for each in found if isinstance(each, BaseException)), None):
            raise error
        return dict(zip(refs, found, strict=True))

    def free(self, ref: Ref) -> None:
        """See `Refs.free`. Soon."""
        self._loop.call_soon_threadsafe(self._links.free, ref)


class WorkerRefs:
    """`Refs` of a worker process: its own, and through links those of all others."""

    def __init__(self, own: SegmentRefs, keeper: str, links: Links) -> None:
        self._own = own
        self._keeper = keeper
        self._links = links
        self._elsewhere = RefsElsewhere(links, asyncio.get_running_loop())

    def put(self, columns: Mapping[str, Any]) -> Ref:
        """See `Refs.put`."""
        return self._own.put(columns)

    def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """See `Refs.get`. Raises RuntimeError in the event loop for what another keeps."""
        return self._of(ref).get(ref, names)

    def fetched(self, refs: Collection[Ref]) -> Mapping[Ref, Mapping[str, Any]]:
        """See `FarRefs.fetched`. Raises RuntimeError in the event loop."""
        return self._elsewhere.fetched([ref for ref in refs if ref.keeper != self._keeper])

    async def get_soon(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """See `Services.get`."""
        return self._own.get(ref, names) if ref.keeper == self._keeper else await self._links.get(ref, names)

    def free(self, ref: Ref) -> None:
        """See `Refs.free`."""
        self._of(ref).free(ref)

    def _of(self, ref: Ref) -> Refs:
        return self._own if ref.keeper == self._keeper else self._elsewhere
