"""One continuation asked of an engine, under the deadline of the HTTP request that wants it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from headrace.engines.completions import Asked, stream
from headrace.engines.pool import EnginePool
from headrace.engines.protocol import TokenChunk
from headrace.runtime.protocol import Clock

T = TypeVar("T")


class Deadline:
    """One moment by which everything that a request waits for must have come."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._end = clock.now() + seconds

    async def wait(self, awaitable: Awaitable[T], what: str) -> T:
        """Raises WaitTimeout."""
        return await self._clock.wait_for(awaitable, max(0.0, self._end - self._clock.now()), what)


def noise_key(seed: int, *places: int) -> int:
    """64-bit key: BLAKE2b, 8 bytes, little-endian, of the numbers as decimals with spaces between."""
    text = " ".join(str(number) for number in (seed, *places))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


async def sample(pool: EnginePool, asked: Asked, deadline: Deadline) -> AsyncGenerator[TokenChunk, None]:
    """`engines.completions.stream`, each chunk of which must come in time.

    Raises RequestError, EngineError and WaitTimeout. Leaving early aborts the request.
    """
    async with aclosing(stream(pool, asked)) as chunks:
        while True:
            try:
                chunk = await deadline.wait(anext(chunks), f"tokens of request {asked.name}")
            except StopAsyncIteration:
                return
            yield chunk
            if chunk.finish_reason is not None:
                return


@dataclass(frozen=True, slots=True)
class _Ended:
    error: Exception | None


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """(index of the stream, item) as items come. The first error ends all; leaving early ends all."""
    queue: asyncio.Queue[tuple[int, T | _Ended]] = asyncio.Queue(maxsize=len(streams))

    async def pump(index: int, stream: AsyncGenerator[T, None]) -> None:
        error = None
        try:
            async for item in stream:
                await queue.put((index, item))
        except Exception as caught:
            error = caught
        finally:
            await stream.aclose()
        await queue.put((index, _Ended(error)))

    tasks = [asyncio.create_task(pump(index, stream)) for index, stream in enumerate(streams)]
    left = len(tasks)
    try:
        while left:
            index, item = await queue.get()
            if not isinstance(item, _Ended):
                yield index, item
            elif item.error is not None:
                raise item.error
            else:
                left -= 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
