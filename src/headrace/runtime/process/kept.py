"""Refs across processes: columns lie in the shared memory of whoever put them, and are mapped by whoever reads them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from headrace.runtime.local.local_refs import Keepers
from headrace.runtime.process.bundle import Kept
from headrace.runtime.process.link import FETCH_S, Link
from headrace.runtime.process.shared_memory import Segments, remove
from headrace.runtime.process.site import socket_path
from headrace.runtime.protocol import Services
from headrace.runtime.refs import Ref, RefLost, Refs
from headrace.runtime.wire.wire_format import Parcel, pack, unpack
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import WorkerLost

SHARED = 1 << 16
"""Bytes from which on what is put lies in shared memory."""


class SegmentRefs:
    """What one worker process keeps. Of the event loop and of lanes alike."""

    def __init__(self, keeper: str, first: int, types: WireTypes, segments: Segments) -> None:
        self._keeper = keeper
        self._numbers = count(first)
        self._types = types
        self._segments = segments
        self._kept: dict[int, Kept] = {}

    def put(self, columns: Mapping[str, Any]) -> Ref:
        """See `Refs.put`. Raises WireError."""
        parcel = pack(dict(columns), self._types, "the columns")
        if sum(map(len, parcel.buffers)) >= SHARED:
            kept = Kept(Parcel(parcel.envelope), self._segments.write(parcel.buffers))
        else:
            copies = [memoryview(bytearray(buffer)) for buffer in parcel.buffers]
            kept = Kept(Parcel(parcel.envelope, copies))
        ref = Ref(self._keeper, next(self._numbers), tuple(columns))
        self._kept[ref.number] = kept
        return ref

    def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """See `Refs.get`."""
        kept = self._kept.get(ref.number) if ref.keeper == self._keeper else None
        if kept is None:
            raise RefLost(ref)
        try:
            return _opened(kept.whole(), self._types, names)
        except FileNotFoundError as error:
            raise RefLost(ref) from error

    def free(self, ref: Ref) -> None:
        """See `Refs.free`."""
        kept = self._kept.pop(ref.number, None) if ref.keeper == self._keeper else None
        if kept is not None and kept.segment is not None:
            remove(kept.segment.path)

    def kept(self, keeper: str, numbers: Sequence[int]) -> Sequence[Kept | None]:
        """See `Shown.kept`. Nothing is copied."""
        return [self._kept.get(number) if keeper == self._keeper else None for number in numbers]


class ShownRefs:
    """What is kept in a process as objects, for others: a copy for each who asks."""

    def __init__(self, keepers: Keepers, types: Callable[[], WireTypes]) -> None:
        self._keepers = keepers
        self._types = types

    def kept(self, keeper: str, numbers: Sequence[int]) -> Sequence[Kept | None]:
        """See `Shown.kept`."""
        return [self._packed(Ref(keeper, number, ())) for number in numbers]

    def _packed(self, ref: Ref) -> Kept | None:
        try:
            columns = self._keepers.here(ref).get(ref)
        except RefLost:
            return None
        return Kept(pack(dict(columns), self._types(), "the columns"))

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
        found = await self.fetch([ref])
        return self.opened(found[ref], names)

    async def fetch(self, refs: Collection[Ref]) -> Mapping[Ref, Parcel]:
        """From whoever keeps them, each asked once. Raises RefLost."""
        by_keeper: dict[str, list[Ref]] = {}
        for ref in refs:
            by_keeper.setdefault(ref.keeper, []).append(ref)
        asked = [asyncio.ensure_future(self._fetch(each)) for each in by_keeper.values()]
        if len(asked) > 1:
            await asyncio.wait(asked)
        found: dict[Ref, Parcel] = {}
        for each in asked:
            found.update(await each)
        return found

    def opened(self, parcel: Parcel, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """All columns, unless `names` are given. Raises WireError; KeyError for a name that is not there."""
        return _opened(parcel, self._types(), names)

    def free(self, refs: Collection[Ref]) -> None:
        """Soon."""
        by_keeper: dict[str, list[int]] = {}
        for ref in refs:
            by_keeper.setdefault(ref.keeper, []).append(ref.number)
        for keeper, numbers in by_keeper.items():
            self._services.spawn(self._free(keeper, numbers), "free refs")

    def close(self) -> None:
        for opening in self._open.values():
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                opening.result().end("it was closed")
        self._open.clear()

    async def _fetch(self, refs: Sequence[Ref]) -> Mapping[Ref, Parcel]:
        """Of one keeper."""
        try:
            link = await self.to(refs[0].keeper)
            parcels: list[Parcel | None] = []
            while (left := refs[len(parcels) :]) and (
                more := await link.fetch(refs[0].keeper, [ref.number for ref in left])
            ):
                parcels += more[: len(left)]
        except (WorkerLost, OSError) as error:
            raise RefLost(refs[0]) from error
        found: dict[Ref, Parcel] = {}
        for ref, parcel in zip(refs, parcels, strict=True):
            if parcel is None:
                raise RefLost(ref)
            found[ref] = parcel
        return found

    async def _free(self, keeper: str, numbers: Sequence[int]) -> None:
        with contextlib.suppress(OSError, WorkerLost):
            await (await self.to(keeper)).free(keeper, numbers)


def _opened(parcel: Parcel, types: WireTypes, names: Collection[str] | None) -> Mapping[str, Any]:
    columns: Mapping[str, Any] = unpack(parcel, types, "the columns")
    return columns if names is None else {name: columns[name] for name in names}


class RefsElsewhere:
    """`Refs` of other processes, for lanes."""

    def __init__(self, links: Links, loop: asyncio.AbstractEventLoop) -> None:
        self._links = links
        self._loop = loop
        self._freed: list[Ref] = []
        """And nobody was told yet."""
        self._freeing = threading.Lock()

    def put(self, columns: Mapping[str, Any]) -> Ref:
        """Nobody puts what another keeps."""
        raise NotImplementedError

    def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """See `Refs.get`. Raises RuntimeError in the event loop."""
        if asyncio._get_running_loop() is self._loop:
            raise RuntimeError(f"this blocks on {ref.keeper or 'the controller'}; in a coroutine: await host.get(ref)")
        found = asyncio.run_coroutine_threadsafe(self._links.fetch([ref]), self._loop).result(2 * FETCH_S)
        return self._links.opened(found[ref], names)

    def fetched(self, refs: Collection[Ref]) -> Mapping[Ref, Mapping[str, Any]]:
        """See `FarRefs.fetched`. Raises RuntimeError in the event loop."""
        if not refs:
            return {}
        if asyncio._get_running_loop() is self._loop:
            raise RuntimeError("this blocks; in a coroutine: await host.get(ref)")

        found = asyncio.run_coroutine_threadsafe(self._links.fetch(refs), self._loop).result(2 * FETCH_S)
        return {ref: self._links.opened(parcel) for ref, parcel in found.items()}

    def free(self, ref: Ref) -> None:
        """See `Refs.free`. Soon, with what else is freed in the same moment."""
        with self._freeing:
            self._freed.append(ref)
            is_first = len(self._freed) == 1
        if is_first:
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        with self._freeing:
            freed, self._freed = self._freed, []
        self._links.free(freed)


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
