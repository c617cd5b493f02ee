"""Waiting for what a worker has been asked: with a deadline, and never leaving a worker that computes for nobody."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.runtime.workers import WorkerLost

STOP_S = 5.0
"""In which a worker that is told to stop has to have stopped."""
END_S = 30.0
"""In which a worker's own `close` has to end."""
WINDOW = 16
"""Items by which a stream is ahead of its reader."""


@dataclass(slots=True)
class Asked:
    """A call in flight."""

    stop: Callable[[], object]
    """Tells the worker to stop; it answers all the same."""
    give_up: Callable[[str], None]
    """Ends the worker, for a reason; `answer` is there at once."""
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Raises WorkerError or WorkerLost."""


async def answered(asked: Asked, clock: Clock, seconds: float, what: str) -> Any:
    """The answer. See `Workers.call`."""
    end = clock.now() + seconds
    try:
        return await clock.wait_for(asyncio.shield(asked.answer), seconds, what)
    except (WaitTimeout, asyncio.CancelledError) as why:
        in_time = not isinstance(why, WaitTimeout)
        await stopped(asked, max(end - clock.now(), STOP_S) if in_time else STOP_S, what)
        if isinstance(why, WaitTimeout) and asked.answer.done() and _is_lost(asked.answer):
            raise asked.answer.exception() from why  # type: ignore[misc]
        raise


async def stopped(asked: Asked, seconds: float, what: str) -> None:
    """Tell the worker to stop, and wait until it has. If it does not within `seconds`, it is ended."""
    asked.answer.add_done_callback(_is_known)  # also where this wait is cancelled
    if not asked.answer.done():
        asked.stop()
        await asyncio.wait([asked.answer], timeout=seconds)
    if not asked.answer.done():
        asked.give_up(f"it was told to stop {what}, and had not after {seconds:.1f} s")


def _is_known(answer: asyncio.Future[Any]) -> None:
    """Nobody else wants to know how it failed."""
    if not answer.cancelled():
        answer.exception()


def _is_lost(answer: asyncio.Future[Any]) -> bool:
    return not answer.cancelled() and isinstance(answer.exception(), WorkerLost)


class Incoming:
    """The items of a stream on the reader's side."""

    def __init__(self, took: Callable[[], None]) -> None:
        """`took` is called for every item that is read."""
        self._took = took
        self._items: deque[Any] = deque()
        self._news = asyncio.Event()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._news.set()

    async def read(self, asked: Asked, clock: Clock, seconds: float, what: str) -> AsyncGenerator[Any, None]:
        """See `Workers.stream`."""
        asked.answer.add_done_callback(lambda _: self._news.set())
        try:
            while await clock.wait_for(self._more(asked), seconds, what):
                self._took()
                yield self._items.popleft()
            asked.answer.result()
        except WaitTimeout as late:
            await stopped(asked, STOP_S, what)
            if _is_lost(asked.answer):
                raise asked.answer.exception() from late  # type: ignore[misc]
            raise
        finally:
            await stopped(asked, STOP_S, what)

    async def _more(self, asked: Asked) -> bool:
        while not self._items and not asked.answer.done():
            self._news.clear()
            await self._news.wait()
        return bool(self._items)
