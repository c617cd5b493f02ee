"""Refs in Ray's object store: columns lie there once for all processes of a node, and are read without a copy.

A message to Ray costs about a millisecond, and a batch has thousands of columns: what a process puts within a moment
goes as one object, a bundle, and who asks for one of its refs has all of them at hand for a second, also those that
others free meanwhile. An object is owned by the process that put it, and lost with it. Which one a ref is in, the
`Shelf` knows.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from itertools import count
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, ObjectStoreFullError, OutOfDiskError, RayError

from headrace.runtime.ray.boxes import Box, boxed, opened
from headrace.runtime.ray.shelf import SHELF, Held, Key
from headrace.runtime.ray.store_gate import StoreGate
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.wire.wire_types import WireTypes

logger = logging.getLogger(__name__)

_FETCH_S = 60.0
_LOOK_S = 2.0
"""How often, of what is on its way, the shelf is asked whether it still is."""
_END_S = 5.0
"""In which what is being sent is, unless Ray has ended."""
_MOMENT_S = 0.001
_GATE_S = 0.1
"""How often, while the store must not be touched, it is asked whether this is closed."""
_BUNDLE = 8 * 2**20
"""Bytes at which one goes without waiting."""
_AT_HAND = 64 * 2**20
"""Bytes of bundles that a process keeps at hand, beside the last one."""
_FRESH_S = 1.0
"""For which what one holds is taken for what there is."""


class ActorRefs:
    """What one process of the run puts, and what all have put. Of its event loop and of lanes alike."""

    def __init__(
        self, keeper: str, first: int, types: WireTypes, namespace: str, gate: StoreGate | None = None
    ) -> None:
        """`gate`: that of this node's store, of who is to outlive it."""
        self._keeper = keeper
        self._gate = gate
        self._numbers = count(first)
        self._types = types
        self._shelf = ray.get_actor(SHELF, namespace=namespace)
        self._at_hand = _AtHand()
        self._changed = threading.Condition()
        self._waiting: dict[int, Box | None] = {}
        """Put, and not sent yet; None for what was freed before."""
        self._bytes = 0
        self._freed: dict[Key, None] = {}
        """And the shelf was not told yet."""
        self._full = ""
        """Why columns were lost for want of room, if any were."""
        self._closed = False
        self._sending = threading.Thread(target=self._send, name="refs", daemon=True)
        self._sending.start()

    def put(self, columns: Mapping[str, Any]) -> Ref:
        """See `Refs.put`. Raises WireError; OSError once what was put before had no room."""
        box = boxed(dict(columns), self._types, "the columns")
        with self._changed:
            if self._full:
                raise OSError(errno.ENOSPC, self._full)
            number = next(self._numbers)
            self._waiting[number] = box
            self._bytes += _size(box)
            self._changed.notify()
        return Ref(self._keeper, number, tuple(columns))

    def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """See `Refs.get`. Blocks; not for the event loop unless the ref is this process's own."""
        box = self._here(ref)
        if box is None:
            try:
                found = self._find_all([ref])
                boxes = self._arrived([ref], found)
            except RayError as error:
                raise RefLost(ref) from error
            box = self._came(ref, found, boxes)
        return self._chosen(box, names)

    def fetched(self, refs: Collection[Ref]) -> Mapping[Ref, Mapping[str, Any]]:
        """See `FarRefs.fetched`: of all that are not here the bundles are asked for at once."""
        here = {ref: self._here(ref) for ref in refs}
        if missing := [ref for ref, box in here.items() if box is None]:
            try:
                found = self._find_all(missing)
                boxes = self._arrived(missing, found)
            except RayError:  # who put one of them has ended, or Ray has
                return {ref: self.get(ref) for ref in refs}
            came: dict[Key, Box | None] = {}
            for (_, numbers, keeper), bundle in zip(found, boxes, strict=True):
                self._at_hand.add(keeper, dict(zip(numbers, bundle, strict=True)))
                came.update({(keeper, number): box for number, box in zip(numbers, bundle, strict=True)})
            for ref in missing:
                if (box := came.get((ref.keeper, ref.number))) is None:
                    raise RefLost(ref)
                here[ref] = box
        return {ref: self._chosen(box, None) for ref, box in here.items() if box is not None}

    async def get_soon(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """See `Services.get`."""
        box = self._here(ref)
        if box is None:
            try:
                async with asyncio.timeout(_FETCH_S):
                    found = await self._find_soon(ref)
                    boxes = [await self._arrived_soon(ref, held) for held, _, _ in found]
            except (RayError, TimeoutError) as error:
                raise RefLost(ref) from error
            box = self._came(ref, found, boxes)
        return self._chosen(box, names)

    def free(self, ref: Ref) -> None:
        """See `Refs.free`."""
        key = ref.keeper, ref.number
        self._at_hand.drop(key)
        with self._changed:
            if ref.keeper == self._keeper and ref.number in self._waiting:
                self._bytes -= _size(self._waiting[ref.number])
                self._waiting[ref.number] = None
            self._freed[key] = None
            self._changed.notify()

    def close(self) -> None:
        """Send nothing more. Blocking."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._sending.join(_END_S)
        if self._gate is not None:
            self._gate.close()

    def _here(self, ref: Ref) -> Box | None:
        with self._changed:
            if (ref.keeper, ref.number) in self._freed:
                raise RefLost(ref)
            if ref.keeper == self._keeper and ref.number in self._waiting:
                if (box := self._waiting[ref.number]) is None:
                    raise RefLost(ref)
                return box
        return self._at_hand.find((ref.keeper, ref.number))

    def _find_all(self, refs: Sequence[Ref]) -> list[Held]:
        """Raises RayError."""
        return list(ray.get(self._shelf.find_all.remote(_keys(refs)), timeout=_FETCH_S))

    async def _find_soon(self, ref: Ref) -> list[Held]:
        return list(await self._shelf.find_all.remote(_keys([ref])))

    def _arrived(self, refs: Sequence[Ref], found: Sequence[Held]) -> list[list[Box | None]]:
        """The bundles. Of a machine that has fallen silent nothing arrives: Ray tells of that after a minute, the shelf
        knows no more of a worker as soon as it is lost. Raises RefLost; RayError."""
        self._require_store(refs)
        objects = [held for held, _, _ in found]
        with suppress(GetTimeoutError):
            return list(ray.get(objects, timeout=_LOOK_S))
        # Asking Ray once more would begin what is on its way anew.
        arriving, end = [each.future() for each in objects], time.monotonic() + _FETCH_S
        left: set[Future[Any]] = set(arriving)
        while left:
            done, left = wait(left, _LOOK_S)
            if done:
                end = time.monotonic() + _FETCH_S
            elif time.monotonic() > end:
                raise GetTimeoutError(f"nothing of {len(left)} objects has arrived for {_FETCH_S:g} s")
            if left:
                self._require_store(refs)
                _require_same(refs, found, self._find_all(refs))
        return [each.result() for each in arriving]

    async def _arrived_soon(self, ref: Ref, held: Any) -> list[Box | None]:
        """As `_arrived`."""
        if self._gate is not None:
            await self._gate.wait_soon()
        arriving = asyncio.ensure_future(_awaited(held))
        try:
            while not (await asyncio.wait([arriving], timeout=_LOOK_S))[0]:
                if not await self._find_soon(ref):
                    raise RefLost(ref)
            return await arriving
        finally:
            arriving.cancel()

    def _may_touch_store(self, seconds: float = math.inf) -> bool:
        """Once this node's store may be touched; not, if this is closed before, or it is not so within so long."""
        end = time.monotonic() + seconds
        while self._gate is not None and not self._gate.wait(_GATE_S):
            if self._closed or time.monotonic() > end:
                return False
        return True

    def _require_store(self, refs: Sequence[Ref]) -> None:
        """Raises RefLost where the store is gone, and is not there again in time."""
        if not self._may_touch_store(_FETCH_S):
            raise RefLost(refs[0])

    def _came(self, ref: Ref, found: Sequence[Held], boxes: Sequence[list[Box | None]]) -> Box:
        if not found:
            raise RefLost(ref)
        bundle: dict[int, Box | None] = dict(zip(found[0][1], boxes[0], strict=True))
        self._at_hand.add(ref.keeper, bundle)
        if (box := bundle[ref.number]) is None:
            raise RefLost(ref)
        return box

    def _chosen(self, box: Box, names: Collection[str] | None) -> Mapping[str, Any]:
        columns: Mapping[str, Any] = opened(box, self._types, "the columns")
        return columns if names is None else {name: columns[name] for name in names}

    def _send(self) -> None:
        """What was put and freed, a moment's at a time, until `close`."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting or self._freed or self._closed))
                if self._closed:
                    return
                self._changed.wait_for(lambda: self._bytes >= _BUNDLE or self._closed, _MOMENT_S)
            if not self._may_touch_store():
                return
            with self._changed:
                bundle, freed = dict(self._waiting), [*self._freed]
            try:
                if freed:  # first: it may be the room that what was put is in want of
                    self._shelf.free.remote(freed)
                if bundle:
                    held = ray.put([*bundle.values()])
                    self._shelf.keep.remote(self._keeper, [*bundle], [held])
            except (ObjectStoreFullError, OutOfDiskError):  # the disk's, if it may go there
                size = sum(map(_size, bundle.values()))
                why = (
                    f"{size} bytes of columns of {self._keeper or 'the controller'} do not fit into Ray's object store "
                    "on its node: start Ray there with more (ray start --object-store-memory; it lies in /dev/shm, of "
                    "which a container has its --shm-size), or let less run ahead (async.ahead, async.table_gib)"
                )
                logger.error("%s", why)
                with self._changed:
                    self._full = why
            except Exception as error:  # of any kind, as Ray ends: who asks for them is told that they are lost
                logger.error("columns of %s are lost: %s", self._keeper or "the controller", error)
            self._at_hand.add(self._keeper, bundle)
            with self._changed:
                for key in freed:
                    del self._freed[key]
                for number in bundle:
                    self._bytes -= _size(self._waiting.pop(number))


def _keys(refs: Sequence[Ref]) -> list[Key]:
    return [(ref.keeper, ref.number) for ref in refs]


def _require_same(refs: Sequence[Ref], found: Sequence[Held], now: Sequence[Held]) -> None:
    """Raises RefLost for the first of what the shelf knew then, and knows no more."""
    known = {(keeper, number) for _, numbers, keeper in now for number in numbers}
    lost = {(keeper, number) for _, numbers, keeper in found for number in numbers} - known
    for ref in refs:
        if (ref.keeper, ref.number) in lost:
            raise RefLost(ref)


async def _awaited(held: Any) -> list[Box | None]:
    return list(await held)


class _AtHand:
    """The bundles that were looked at last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bundles: OrderedDict[Key, tuple[float, dict[int, Box | None]]] = OrderedDict()
        """With the time at which each came; the oldest first."""
        self._first: dict[Key, int] = {}
        self._bytes = 0

    def add(self, keeper: str, boxes: Mapping[int, Box | None]) -> None:
        """By their numbers."""
        if not boxes:
            return
        with self._lock:
            now, first = time.monotonic(), next(iter(boxes))
            if (keeper, first) in self._bundles:
                self._remove((keeper, first))
            self._bundles[keeper, first] = now, dict(boxes)
            self._first.update({(keeper, number): first for number in boxes})
            self._bytes += sum(map(_size, boxes.values()))
            while len(self._bundles) > 1:
                key, (came, _) = next(iter(self._bundles.items()))
                if self._bytes <= _AT_HAND and now - came < _FRESH_S:
                    break
                self._remove(key)

    def find(self, key: Key) -> Box | None:
        with self._lock:
            first = self._first.get(key)
            if first is None:
                return None
            came, boxes = self._bundles[key[0], first]
            return boxes[key[1]] if time.monotonic() - came < _FRESH_S else None

    def _remove(self, bundle: Key) -> None:
        for number, box in self._bundles.pop(bundle)[1].items():
            self._first.pop((bundle[0], number), None)
            self._bytes -= _size(box)

    def drop(self, key: Key) -> None:
        """It was freed here."""
        with self._lock:
            self._first.pop(key, None)


def _size(box: Box | None) -> int:
    if box is None:
        return 0
    envelope, buffers = box
    return len(envelope) + sum(buffer.nbytes for buffer in buffers)
