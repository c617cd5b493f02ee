"""The user's coroutines, which may refuse to end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def ended_or_left(coroutine: Coroutine[Any, Any, T], grace_s: float, leave: Callable[[], None]) -> T:
    """The result of `coroutine`. If this is cancelled, so is it; where it has not ended `grace_s` later, since it takes
    its cancellation for an error like any other, `leave` is called, and nobody waits for it any more: not even the
    event loop at its end."""
    task = asyncio.ensure_future(coroutine)
    try:
        await asyncio.wait([task])
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await _end(task, grace_s, leave)
        if task.done() and not task.cancelled():
            task.exception()  # it may have failed as this was cancelled: nobody asks for it any more


async def _end(task: asyncio.Task[Any], grace_s: float, leave: Callable[[], None]) -> None:
    try:
        await asyncio.wait([task], timeout=grace_s)
    finally:
        if not task.done():
            leave()
            # Else `asyncio.run` would cancel it and wait for it, and say at the end that it was pending.
            asyncio.tasks._unregister_task(task)
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _LEFT.add(task)
            task.add_done_callback(_LEFT.discard)


_LEFT: set[asyncio.Task[Any]] = set()
"""The event loop holds no task that waits for something that nobody else holds."""
