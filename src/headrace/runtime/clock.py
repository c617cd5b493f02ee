"""The clocks of event loops."""

from __future__ import annotations

import asyncio
import time
import types
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, TypeVar

from headrace.runtime.protocol import WaitTimeout

T = TypeVar("T")


class LoopClock:
    """Waits as the running event loop does."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait_for(self, awaitable: Awaitable[T], seconds: float, what: str) -> T:
        """See `Clock.wait_for`. A TimeoutError raised by `awaitable` itself passes through unchanged."""
        end = asyncio.get_running_loop().time() + seconds
        if asyncio.iscoroutine(awaitable):
            try:
                waits = awaitable.send(None)
            except StopIteration as ended:  # it had nothing to wait for, and needs no timer
                result: T = ended.value
                return result
            awaitable = _begun(awaitable, waits)
        try:
            async with asyncio.timeout_at(end) as scope:
                return await awaitable
        except TimeoutError as error:
            if scope.expired():
                raise WaitTimeout(what, seconds) from error
            raise


class SystemClock(LoopClock):
    """The machine's clock."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


@types.coroutine
def _begun(coroutine: Coroutine[Any, Any, T], waits: Any) -> Generator[Any, Any, T]:
    """The rest of a coroutine that has come to where it `waits`."""
    while True:
        try:
            yield waits
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:
            try:
                waits = coroutine.throw(error)
            except StopIteration as ended:
                result: T = ended.value
                return result
        else:
            return (yield from coroutine)


def processor_seconds() -> float:
    """That the calling thread has had: of what it computed, whatever else the machine is busy with."""
    return time.thread_time()
