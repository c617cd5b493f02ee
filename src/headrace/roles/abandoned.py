"""Answers that nobody waits for any more: the refs in them are let go."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from headrace.runtime.protocol import Services
from headrace.runtime.refs import Refs, refs_in

T = TypeVar("T")


async def freed_if_left(services: Services, refs: Refs, asking: Coroutine[Any, Any, T], what: str) -> T:
    """What `asking` gives. Whoever is cancelled meanwhile leaves it at work, as what computes cannot be stopped; the
    refs in its answer are freed when it comes, since nobody else knows them."""
    answer = services.spawn(asking, what)
    try:
        return await asyncio.shield(answer)
    except asyncio.CancelledError:

        def free(done: asyncio.Task[T]) -> None:
            if not done.cancelled() and done.exception() is None:
                for ref in refs_in(done.result()):
                    refs.free(ref)

        answer.add_done_callback(free)
        raise
