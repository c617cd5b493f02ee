"""The workers of one kind, wherever they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Generic, Protocol, TypeVar

from headrace.runtime.signal import Signal
from headrace.runtime.together import together
from headrace.runtime.workers import Handle, Peer, Worker, WorkerLost

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

    async def cleared(self) -> None:
        """Of one that is lost: once nothing of its last life is left."""

    async def close(self) -> None: ...


More = Callable[[object, int], Awaitable[tuple[Member, Handle]]]
"""Given a spec and a rank."""


class WorkerGroup(Generic[W]):
    """`Workers`."""

    def __init__(self, more: More) -> None:
        """`more` makes one more of them."""
        self.changed = Signal()
        self._more = more
        self._members: list[Member] = []
        self._handles: list[Handle] = []
        self._turns: list[asyncio.Lock] = []
        self._left: dict[int, None] = {}
        self._adding = asyncio.Lock()

    def take(self, member: Member, handle: Handle) -> None:
        """It is made, and its rank is the next one."""
        self._members.append(member)
        self._handles.append(handle)
        self._turns.append(asyncio.Lock())
        member.when_lost(self.changed.notify)

    @property
    def handles(self) -> Sequence[Handle]:
        """See `Workers.handles`."""
        return self._handles

    @property
    def lost(self) -> Mapping[int, str]:
        """See `Workers.lost`."""
        return {member.rank: member.lost for member in self._there() if member.lost is not None}

    async def call(
        self, method: str, *args: Any, rank: int | None = None, what: str, seconds: float | None = None
    ) -> list[Any]:
        """See `Workers.call`."""
        asked = self._there() if rank is None else [self._members[rank]]
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
            if rank in self._left:
                raise WorkerLost(rank, "it has left", worker=member.name)
            member.lose("it is made anew")
            await member.start()
            self.changed.notify()

    async def cleared(self, rank: int) -> None:
        """See `Workers.cleared`."""
        async with self._turns[rank]:
            member = self._members[rank]
            if member.lost is not None:
                await member.cleared()

    async def kill(self, rank: int, reason: str) -> None:
        """See `Workers.kill`. A call on a lane that does not return goes on for nobody."""
        self._members[rank].lose(reason)

    async def add(self, spec: object) -> int:
        """See `Workers.add`."""
        async with self._adding:
            member, handle = await self._more(spec, len(self._members))
            self.take(member, handle)
            return member.rank

    async def leave(self, rank: int) -> None:
        """See `Workers.leave`."""
        if rank not in self._left:
            self._left[rank] = None
            async with self._turns[rank]:
                await self._members[rank].close()

    def _there(self) -> list[Member]:
        return [member for member in self._members if member.rank not in self._left]

    async def close(self) -> None:
        """See `Workers.close`. Of one that was to leave, and did not, as whoever waited for that was cancelled, too."""
        for error in (await self.end()).values():
            raise error

    async def end(self) -> dict[str, BaseException]:
        """As `close`; what each of those raised whose end failed, by its name."""
        there = [member for member in self._members if member.rank not in self._left or member.lost is None]
        ends = await asyncio.gather(*(member.close() for member in there), return_exceptions=True)
        return {member.name: end for member, end in zip(there, ends, strict=True) if end is not None}
