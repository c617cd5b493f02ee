"""Refs in Ray's object store: columns lie there once for all processes of a node, and are read without a copy.

Each object is owned by the process that put it, and lost with it. Which object a ref is, one actor of the run knows,
the `Shelf`: the controller, where most are asked for, is none that could be asked.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Mapping
from itertools import count
from typing import Any

import ray
from ray.exceptions import RayError

from headrace.runtime.ray.boxes import boxed, opened
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.wire.wire_types import WireTypes

SHELF = "shelf"
_FETCH_S = 60.0
_ON_ITS_WAY_S = 5.0
"""In which what a process has put is known here: a message of its own goes another way than the ref."""


class Shelf:
    """An actor. Of each keeper the numbers come in their order: what is below the last one, and is not here, was
    freed."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, int], Any] = {}
        self._last: dict[str, int] = {}
        self._came = asyncio.Condition()

    async def keep(self, keeper: str, number: int, held: list[Any]) -> None:
        """`held`: the object, in a list, or Ray would hand over what it is."""
        async with self._came:
            self._objects[keeper, number] = held[0]
            self._last[keeper] = max(number, self._last.get(keeper, number))
            self._came.notify_all()

    async def find(self, keeper: str, number: int) -> list[Any]:
        """The object, in a list; an empty one if there is none."""
        async with self._came:
            if self._last.get(keeper, -1) < number:
                try:
                    async with asyncio.timeout(_ON_ITS_WAY_S):
                        await self._came.wait_for(lambda: self._last.get(keeper, -1) >= number)
                except TimeoutError:
                    return []
        found = self._objects.get((keeper, number))
        return [] if found is None else [found]

    async def free(self, keeper: str, number: int) -> None:
        self._objects.pop((keeper, number), None)

    async def forget(self, keeper: str, below: int) -> None:
        """It has ended: what it put under numbers below this is lost, also where Ray has it for a while."""
        for key in [key for key in self._objects if key[0] == keeper and key[1] < below]:
            del self._objects[key]
        async with self._came:
            self._last[keeper] = max(below - 1, self._last.get(keeper, -1))
            self._came.notify_all()

    async def count(self) -> int:
        """Refs that were put and not freed."""
        return len(self._objects)


class ActorRefs:
    """What one process of the run puts, and what all have put. Of its event loop and of lanes alike."""

    def __init__(self, keeper: str, first: int, types: WireTypes, namespace: str) -> None:
        self._keeper = keeper
        self._numbers = count(first)
        self._types = types
        self._shelf = ray.get_actor(SHELF, namespace=namespace)
        self._own: dict[int, Any] = {}
        """Objects that this process put."""
        self._putting = threading.Lock()  # on any lane

    def put(self, columns: Mapping[str, Any]) -> Ref:
        """See `Refs.put`. Raises WireError."""
        held = ray.put(boxed(dict(columns), self._types, "the columns"))
        with self._putting:
            number = next(self._numbers)
            self._own[number] = held
            self._shelf.keep.remote(self._keeper, number, [held])
        return Ref(self._keeper, number, tuple(columns))

    def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """See `Refs.get`. Blocks; not for the event loop unless the ref is this process's own."""
        held: Any = self._mine(ref)
        try:
            if held is None:
                found: list[Any] = ray.get(self._shelf.find.remote(ref.keeper, ref.number), timeout=_FETCH_S)
                if not found:
                    raise RefLost(ref)
                held = found[0]
            box = ray.get(held, timeout=_FETCH_S)
        except RayError as error:
            raise RefLost(ref) from error
        return _chosen(opened(box, self._types, "the columns"), names)

    async def get_soon(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """See `Services.get`."""
        held: Any = self._mine(ref)
        try:
            async with asyncio.timeout(_FETCH_S):
                if held is None:
                    found = await self._shelf.find.remote(ref.keeper, ref.number)
                    if not found:
                        raise RefLost(ref)
                    held = found[0]
                box = await held
        except (RayError, TimeoutError) as error:
            raise RefLost(ref) from error
        return _chosen(opened(box, self._types, "the columns"), names)

    def _mine(self, ref: Ref) -> Any | None:
        """The object, if this process put it; None for another's. Raises RefLost for one that was freed."""
        if ref.keeper != self._keeper:
            return None
        if ref.number not in self._own:
            raise RefLost(ref)
        return self._own[ref.number]

    def free(self, ref: Ref) -> None:
        """See `Refs.free`."""
        if ref.keeper == self._keeper:
            self._own.pop(ref.number, None)
        self._shelf.free.remote(ref.keeper, ref.number)


def _chosen(columns: Mapping[str, Any], names: Collection[str] | None) -> Mapping[str, Any]:
    return columns if names is None else {name: columns[name] for name in names}
