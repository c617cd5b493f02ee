"""A worker in a process of its own, seen from the controller that started it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.runtime.local.awaited import END_S
from headrace.runtime.process.launch import ChildProcess
from headrace.runtime.process.link import Link
from headrace.runtime.process.shared_memory import Segments
from headrace.runtime.process.site import socket_path
from headrace.runtime.protocol import Services
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Placement, WorkerLost

_LOOK_S = 0.5
_LEAVE_S = 5.0
"""In which a worker process that is told to end has to have ended."""
_REASON_S = 5.0
"""In which a process has ended, once its connection has: it may end others first, as those that score."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a worker is made of, each time."""

    path: str
    """Of its class; see `Boot.kind`."""
    packages: tuple[str, ...]
    types: WireTypes
    spec: object
    closes: bool
    """Whether it has a method `close`."""
    log: Path | None


class RemoteWorker:
    """A `Peer`, and a member of a `WorkerGroup`."""

    here = None

    def __init__(
        self,
        name: str,
        rank: int,
        origin: Origin,
        where: Placement,
        folder: Path,
        segments: Segments,
        services: Services,
    ) -> None:
        self.name = name
        self.rank = rank
        self._is_made = False
        self._ended: str | None = None
        """Why, if it has."""
        self._origin = origin
        self._where = where
        self._folder = folder
        self._segments = segments
        self._services = services
        self._generation = -1
        self._process: ChildProcess | None = None
        self._link: Link | None = None
        self._watching: asyncio.Task[Any] | None = None
        self._listeners: list[Callable[[], None]] = []

    @property
    def lost(self) -> str | None:
        """See `Member.lost`."""
        return None if self._is_made and self._ended is None else self._ended or "it is not made yet"

    def when_lost(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def start(self) -> None:
        """Raises WorkerError, WorkerLost, WaitTimeout, WireError; OSError if no process can be begun."""
        await self._cleared()
        self._generation += 1
        origin, where = self._origin, self._where
        self._is_made, self._ended = False, None
        try:
            self._process = await ChildProcess.begin(
                origin.path,
                origin.packages,
                self.name,
                self.rank,
                self._generation,
                where.threads,
                self._folder,
                origin.log,
            )
            path = socket_path(self._folder, self.name)
            link = await Link.open(path, origin.types, self._segments, self._services, self.name, self.rank)
            link.give_up = self.lose
            link.when_cut = lambda reason: self._unlinked(link, reason)
            self._link = link
            self._watching = self._services.spawn(self._watch(self._process, link), f"watch over {self.name}")
            await link.build(origin.spec, where.start_s)
            self._is_made = True
        except BaseException as error:
            self.lose(f"it could not be made: {error}")
            await self._cleared()
            raise

    async def call(self, method: str, *args: Any, what: str, seconds: float | None = None) -> Any:
        """See `Workers.call`; the one answer."""
        return await self._present().call(method, args, what, self._seconds(seconds))

    async def stream(
        self, method: str, *args: Any, what: str, seconds: float | None = None
    ) -> AsyncGenerator[Any, None]:
        """See `Workers.stream`."""
        link = self._present()
        async with aclosing(link.stream(method, args, what, self._seconds(seconds))) as items:
            async for item in items:
                yield item

    def lose(self, reason: str) -> None:
        """It is no more: its process is killed."""
        if self._ended is not None:
            return
        self._ended = reason
        if self._process is not None:
            self._process.kill()
        if self._link is not None:
            self._link.end(reason)
        socket_path(self._folder, self.name).unlink(missing_ok=True)
        for listener in self._listeners:
            listener()

    async def close(self) -> None:
        """Its own `close`, then the end of its process. Raises WorkerError, WorkerLost, WaitTimeout."""
        try:
            if self.lost is None and self._origin.closes:
                await self.call("close", what="its end", seconds=END_S)
            if self.lost is None and self._link is not None and self._process is not None:
                self._link.leave()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LEAVE_S):
                        await self._process.ended()
        finally:
            self.lose("it was closed")
            await self._cleared()

    async def _watch(self, process: ChildProcess, link: Link) -> None:
        """Until its process has ended, or its event loop has not turned for too long."""
        ended = self._services.spawn(process.ended(), f"end of {self.name}")
        heard, silent_s, now = link.heard, 0.0, self._services.clock.now()
        try:
            while not ended.done():
                await asyncio.wait([ended], timeout=_LOOK_S)
                before, now = now, self._services.clock.now()
                # Time in which the loop here did not turn says nothing about the other; nor does that of its imports,
                # which `start_s` limits.
                is_heard = link.heard > heard or not heard or link.is_cut  # a loop that ends turns no more
                silent_s = 0.0 if is_heard else silent_s + min(now - before, 2 * _LOOK_S)
                heard = link.heard
                if silent_s > self._where.silence_s:
                    self.lose(f"its event loop has not turned for {silent_s:.0f} s")
        finally:
            ended.cancel()
        if link is self._link:
            self.lose(ended.result())

    def _unlinked(self, link: Link, reason: str) -> None:
        """The connection has ended. Mostly the process ends as well, which says more."""
        if self._ended is None and link is self._link:
            self._services.spawn(self._lose_soon(link, reason), f"end of {self.name}")

    async def _lose_soon(self, link: Link, reason: str) -> None:
        if self._watching is not None:
            await asyncio.wait([self._watching], timeout=_REASON_S)
        if link is self._link:
            self.lose(f"{reason}; its process had not ended {_REASON_S:g} s later")

    async def _cleared(self) -> None:
        """Once nothing of the process is left."""
        process, self._process, self._link = self._process, None, None
        if process is not None:
            await process.clear()

    def _present(self) -> Link:
        if self.lost is not None or self._link is None:
            raise WorkerLost(self.rank, self.lost or "it is not made yet", worker=self.name)
        return self._link

    def _seconds(self, seconds: float | None) -> float:
        return self._where.deadline_s if seconds is None else seconds
