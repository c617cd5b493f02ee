"""A worker in a process of its own, seen from the controller that started it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from headrace.runtime.local.member_apart import MemberApart
from headrace.runtime.process.channel import Channel
from headrace.runtime.process.link import Link
from headrace.runtime.process.origin import Begin, Begun, Connected, Origin
from headrace.runtime.process.shared_memory import Segments
from headrace.runtime.process.site import socket_path
from headrace.runtime.protocol import Services
from headrace.runtime.workers import Placement

_LOOK_S = 0.5
_REASON_S = 5.0
"""In which a process has ended, once its connection has: it may end others first, as those that score."""


class RemoteWorker(MemberApart):
    """See `MemberApart`."""

    def __init__(
        self,
        name: str,
        rank: int,
        origin: Origin,
        where: Placement,
        folder: Path,
        segments: Segments,
        services: Services,
        begin: Begin,
    ) -> None:
        super().__init__(name, rank, origin.spec, where, closes=origin.closes)
        self._origin = origin
        self._folder = folder
        self._segments = segments
        self._services = services
        self._begin_process = begin
        self._process: Begun | None = None
        self._link: Link | None = None
        self._watching: asyncio.Task[Any] | None = None

    async def _begin(self) -> Link:
        origin = self._origin
        self._process = await self._begin_process(
            origin, self.name, self.rank, self._generation, self._where, self._folder
        )
        if isinstance(self._process, Connected):
            channel = Channel(*self._process.streams, origin.types)
            link = Link(channel, self._services, self.name, self.rank)
        else:
            path = socket_path(self._folder, self.name)
            link = await Link.open(path, origin.types, self._segments, self._services, self.name, self.rank)
        link.give_up = self.lose
        link.when_cut = lambda reason: self._unlinked(link, reason)
        self._link = link
        self._watching = self._services.spawn(self._watch(self._process, link), f"watch over {self.name}")
        return link

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
        socket_path(self._folder, self.name).unlink(missing_ok=True)

    async def _has_left(self, seconds: float) -> None:
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._process.ended()

    async def _cleared(self) -> None:
        process, self._process, self._link = self._process, None, None
        if process is not None:
            await process.clear()

    async def _watch(self, process: Begun, link: Link) -> None:
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
                if silent_s > self._where.silence.most_s:
                    self.lose(self._where.silence.reason(silent_s))
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
