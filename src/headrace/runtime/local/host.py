"""What a worker is made with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any, TypeVar

from headrace.runtime.progress import Standing
from headrace.runtime.protocol import Clock, Services
from headrace.runtime.refs import Ref, Refs
from headrace.runtime.workers import Handle, Peer

T = TypeVar("T")

Get = Callable[[Ref, Collection[str] | None], Awaitable[Mapping[str, Any]]]


class WorkerHost:
    """A `Host`. What it spawns ends with it."""

    def __init__(
        self,
        name: str,
        rank: int,
        services: Services,
        refs: Refs,
        get: Get,
        reach: Callable[[Handle], Peer],
        threads: int | None = None,
    ) -> None:
        self.name = name
        self.rank = rank
        self.threads = threads
        self.refs = refs
        self._services = services
        self._get = get
        self._reach = reach
        self._tasks: dict[int, asyncio.Task[Any]] = {}

    @property
    def clock(self) -> Clock:
        return self._services.clock

    async def compute(self, lane: str, function: Callable[..., T], *args: Any) -> T:
        """See `Services.compute`. The lane of the worker's blocking methods is that of its kind."""
        return await self._services.compute(f"{lane}/{self.rank}" if self.rank else lane, function, *args)

    def standing(self, lane: str) -> Standing | None:
        """See `Services.standing`."""
        return self._services.standing(f"{lane}/{self.rank}" if self.rank else lane)

    def rebalance(self) -> None:
        """See `Services.rebalance`."""
        self._services.rebalance()

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """See `Services.spawn`."""
        task = self._services.spawn(coroutine, f"{self.name}: {name}")
        self._tasks[id(task)] = task
        task.add_done_callback(lambda done: self._tasks.pop(id(done), None))
        return task

    def put(self, columns: Mapping[str, Any]) -> Ref:
        """See `Services.put`."""
        return self.refs.put(columns)

    async def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """See `Services.get`."""
        return await self._get(ref, names)

    def free(self, ref: Ref) -> None:
        """See `Services.free`."""
        self.refs.free(ref)

    def reach(self, handle: Handle) -> Peer:
        """See `Host.reach`."""
        return self._reach(handle)

    def end(self) -> None:
        """Cancel what it spawned."""
        for task in list(self._tasks.values()):
            task.cancel()
