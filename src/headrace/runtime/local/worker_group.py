"""The workers of one kind, wherever they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Generic, Protocol, TypeVar

from headrace.runtime.signal import Signal
from headrace.runtime.together import together
from headrace.runtime.workers import Handle, Peer, Worker

W = TypeVar("W", bound=Worker)


class Member(Peer, Protocol):
    """One of them."""

    name: str
    rank: int

    @property
    def lost(self) -> str | None:
        """Why, if it is."""

    def when_lost(self, listener: Callable[[], None]) -> None:
        """Have `listener` called each time."""

    async def start(self) -> None:
        """Make it, or make it anew."""

    def lose(self, reason: str) -> None:
        """End it at once. Of one that is lost, nothing happens."""

    async def close(self) -> None: ...


class WorkerGroup(Generic[W]):
    """`Workers`."""

    def __init__(self, members: Sequence[Member], handles: Sequence[Handle]) -> None:
        self.handles = handles
        self.changed = Signal()
        self._members = members
        self._turns = [asyncio.Lock() for _ in members]
        for member in members:
            member.when_lost(self.changed.notify)

    @property
    def lost(self) -> Mapping[int, str]:
        """See `Workers.lost`."""
        return {member.rank: member.lost for member in self._members if member.lost is not None}

    async def call(
        self, method: str, *args: Any, rank: int | None = None, what: str, seconds: float | None = None
    ) -> list[Any]:
        """See `Workers.call`."""
        asked = self._members if rank is None else [self._members[rank]]
        return await together(
            (member.call(method, *args, what=what, seconds=seconds) for member in asked),
            (f"{method} of {member.name}" for member in asked),
        )

    async def stream(
        self, method: str, *args: Any, rank: int, what: str, seconds: float | None = None
    ) -> AsyncGenerator[Any, None]:
        """See `Workers.stream`."""
        async with aclosing(self._members[rank].stream(method, *args, what=what, seconds=seconds)) as items:
            async for item in items:
                yield item

    def here(self, rank: int) -> object | None:
        """See `Workers.here`."""
        return self._members[rank].here

    async def restart(self, rank: int) -> None:
        """See `Workers.restart`."""
        async with self._turns[rank]:
            member = self._members[rank]
            member.lose("it is made anew")
            await member.start()
            self.changed.notify()

    async def kill(self, rank: int, reason: str) -> None:
        """See `Workers.kill`. A call on a lane that does not return goes on for nobody."""
        self._members[rank].lose(reason)

    async def close(self) -> None:
        """See `Workers.close`."""
        ends = await asyncio.gather(*(member.close() for member in self._members), return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end
