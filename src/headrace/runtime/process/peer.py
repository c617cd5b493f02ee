"""A worker in another process, seen from a worker."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from headrace.runtime.process.kept import Links
from headrace.runtime.process.link import Link
from headrace.runtime.workers import DEADLINE_S, Handle, WorkerLost


class LinkedPeer:
    """A `Peer`."""

    here = None

    def __init__(self, handle: Handle, links: Links) -> None:
        self._handle = handle
        self._links = links

    async def call(self, method: str, *args: Any, what: str, seconds: float | None = None) -> Any:
        """See `Peer.call`."""
        return await (await self._link()).call(method, args, what, _seconds(seconds))

    async def stream(
        self, method: str, *args: Any, what: str, seconds: float | None = None
    ) -> AsyncGenerator[Any, None]:
        """See `Peer.stream`."""
        link = await self._link()
        async with aclosing(link.stream(method, args, what, _seconds(seconds))) as items:
            async for item in items:
                yield item

    async def _link(self) -> Link:
        handle = self._handle
        try:
            return await self._links.to(handle.worker, handle.rank, address=handle.address)
        except OSError as error:
            raise WorkerLost(handle.rank, f"nobody answers for it: {error}", worker=handle.worker) from error


def _seconds(seconds: float | None) -> float:
    return DEADLINE_S if seconds is None else seconds
