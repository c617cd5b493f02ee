"""One continuation asked of an engine, under the deadline of the HTTP request that wants it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from headrace.engines.protocol import Engine, EngineError, FinishReason, GenerateRequest, TokenChunk
from headrace.runtime.protocol import Clock

T = TypeVar("T")
_NO_PROGRESS_PAUSE_S = 0.05
"""Before asking again an engine that was interrupted before it sampled anything."""


class Deadline:
    """One moment by which everything that a request waits for must have come."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._end = clock.now() + seconds

    async def wait(self, awaitable: Awaitable[T], what: str) -> T:
        """Raises WaitTimeout."""
        return await self._clock.wait_for(awaitable, max(0.0, self._end - self._clock.now()), what)

    async def pause(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


def noise_key(seed: int, *places: int) -> int:
    """64-bit key: BLAKE2b, 8 bytes, little-endian, of the numbers as decimals with spaces between."""
    text = " ".join(str(number) for number in (seed, *places))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


async def sample(engine: Engine, request: GenerateRequest, deadline: Deadline) -> AsyncGenerator[TokenChunk, None]:
    """Chunks up to the one with the finish reason. An interruption is hidden: the rest is asked for again.

    Raises RequestError, EngineError and WaitTimeout. Leaving early aborts the request.
    """
    parts = [request.prompt]
    left = request.sampling.max_new_tokens
    asked = 0
    while left > 0:
        part = replace(
            request,
            request_id=f"{request.request_id}.{asked}",
            prompt=np.concatenate(parts, dtype=np.int32),
            sampling=replace(request.sampling, max_new_tokens=left),
        )
        asked += 1
        before = left
        async with aclosing(_ask(engine, part, deadline)) as chunks:
            async for chunk in chunks:
                left -= len(chunk.tokens)
                parts.append(chunk.tokens)
                if chunk.finish_reason is not FinishReason.INTERRUPTED:
                    yield chunk
                elif left > 0:
                    yield replace(chunk, finish_reason=None)
                else:
                    yield replace(chunk, finish_reason=FinishReason.LENGTH)
                if chunk.finish_reason not in (None, FinishReason.INTERRUPTED):
                    return
        if left == before:
            await deadline.pause(_NO_PROGRESS_PAUSE_S)


async def _ask(engine: Engine, request: GenerateRequest, deadline: Deadline) -> AsyncGenerator[TokenChunk, None]:
    chunks = engine.generate(request)
    finished = False
    try:
        while not finished:
            try:
                chunk = await deadline.wait(anext(chunks), f"tokens of request {request.request_id}")
            except StopAsyncIteration:
                raise EngineError(f"request {request.request_id} ended without a finish reason") from None
            finished = chunk.finish_reason is not None
            yield chunk
    finally:
        if not finished:
            engine.abort((request.request_id,))
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()


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
