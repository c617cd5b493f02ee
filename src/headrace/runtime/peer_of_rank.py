"""One of several workers, spoken to as any other is."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from headrace.runtime.workers import Workers


class PeerOfRank:
    """A `Peer`: the worker of this rank."""

    def __init__(self, workers: Workers[Any], rank: int) -> None:
        self._workers = workers
        self._rank = rank

    async def call(self, method: str, *args: Any, what: str, seconds: float | None = None) -> Any:
        """See `Peer.call`."""
        return (await self._workers.call(method, *args, rank=self._rank, what=what, seconds=seconds))[0]

    def stream(self, method: str, *args: Any, what: str, seconds: float | None = None) -> AsyncGenerator[Any, None]:
        """See `Peer.stream`."""
        return self._workers.stream(method, *args, rank=self._rank, what=what, seconds=seconds)

    @property
    def here(self) -> object | None:
        """See `Peer.here`."""
        return self._workers.here(self._rank)
