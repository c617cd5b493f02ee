"""What the controller knows of a worker that is not in its own process, wherever that is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Protocol

from headrace.observe.failure import words_of
from headrace.runtime.local.awaited import END_S
from headrace.runtime.progress import Stuck
from headrace.runtime.workers import Placement, WorkerError, WorkerLost

_LEAVE_S = 5.0
"""In which one that is told to end has to have ended."""


class Asking(Protocol):
    """The asking side of the way to it."""

    async def build(self, spec: object, seconds: float) -> None:
        """Have the worker made. Raises WorkerError, WorkerLost, WaitTimeout, WireError."""

    async def call(self, method: str, args: tuple[Any, ...], what: str, seconds: float) -> Any:
        """See `Workers.call`."""

    def stream(self, method: str, args: tuple[Any, ...], what: str, seconds: float) -> AsyncGenerator[Any, None]:
        """See `Workers.stream`."""

    def leave(self) -> None:
        """Tell it to end."""

    def end(self, reason: str) -> None:
        """Nothing more is asked; what was is lost."""


class MemberApart(ABC):
    """A `Peer`, and a member of a `WorkerGroup`. Each life of it is begun, and cleared away, by its own kind."""

    here = None

    def __init__(self, name: str, rank: int, spec: object, where: Placement, *, closes: bool) -> None:
        """`closes`: whether the worker has a method `close`."""
        self.name = name
        self.rank = rank
        self._spec = spec
        self._where = where
        self._closes = closes
        self._generation = -1
        self._is_made = False
        self._ended: str | None = None
        """Why, if it has."""
        self._asking: Asking | None = None
        self._listeners: list[Callable[[], None]] = []
        self.once_closed: Callable[[], Awaitable[None]] | None = None
        """Called when it has ended for good."""

    @abstractmethod
    async def _begin(self) -> Asking:
        """A new life, in which the worker is not made yet."""

    @abstractmethod
    def _kill(self) -> None:
        """End what was begun, at once, as far as it was."""

    @abstractmethod
    async def _has_left(self, seconds: float) -> None:
        """Once it has ended by itself, or so long."""

    @abstractmethod
    async def _cleared(self) -> None:
        """Once nothing of the last life is left."""

    @property
    def lost(self) -> str | None:
        """See `Member.lost`."""
        return None if self._is_made and self._ended is None else self._ended or "it is not made yet"

    def when_lost(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def start(self) -> None:
        """Raises WorkerError, WorkerLost, WaitTimeout, WireError; OSError if nothing can be begun."""
        await self.cleared()
        self._generation += 1
        self._is_made, self._ended = False, None
        try:
            asking = self._asking = await self._begin()
            await asking.build(self._spec, self._where.start_s)
            self._is_made = True
        except BaseException as error:
            self.lose(f"it could not be made: {words_of(error)}")
            await self.cleared()
            raise

    async def call(self, method: str, *args: Any, what: str, seconds: float | None = None) -> Any:
        """See `Workers.call`; the one answer."""
        asking = self._present()
        with self._lost_if_stuck():
            return await asking.call(method, args, what, self._seconds(seconds))

    async def stream(
        self, method: str, *args: Any, what: str, seconds: float | None = None
    ) -> AsyncGenerator[Any, None]:
        """See `Workers.stream`."""
        asking = self._present()
        with self._lost_if_stuck():
            async with aclosing(asking.stream(method, args, what, self._seconds(seconds))) as items:
                async for item in items:
                    yield item

    @contextmanager
    def _lost_if_stuck(self) -> Iterator[None]:
        """It may answer that before its end is known."""
        try:
            yield
        except WorkerError as error:
            if error.type != Stuck.__name__ or error.is_fault:
                raise
            self.lose(error.text)
            raise WorkerLost(self.rank, self._ended or error.text, worker=self.name) from error

    def lose(self, reason: str) -> None:
        """It is no more: it is killed."""
        if self._ended is not None:
            return
        self._ended = reason
        self._kill()
        if self._asking is not None:
            self._asking.end(reason)
        for listener in self._listeners:
            listener()

    async def close(self) -> None:
        """Its own `close`, then its end. Raises WorkerError, WorkerLost, WaitTimeout."""
        try:
            if self.lost is None and self._closes:
                await self.call("close", what="its end", seconds=END_S)
            if self.lost is None and self._asking is not None:
                self._asking.leave()
                await self._has_left(_LEAVE_S)
        finally:
            self.lose("it was closed")
            await self.cleared()
            if self.once_closed is not None:
                await self.once_closed()

    async def cleared(self) -> None:
        """See `Member.cleared`."""
        self._asking = None
        await self._cleared()

    def _present(self) -> Asking:
        if self.lost is not None or self._asking is None:
            raise WorkerLost(self.rank, self.lost or "it is not made yet", worker=self.name)
        return self._asking

    def _seconds(self, seconds: float | None) -> float:
        return self._where.deadline_s if seconds is None else seconds
