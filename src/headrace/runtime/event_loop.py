"""The event loop of a command: nothing that the user's code leaves on a thread holds it up at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from headrace.runtime.lane_thread import NAME_PREFIX, LaneThread

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, which waits for every call of `asyncio.to_thread`, but for calls that never return: workflows
    and environments make some. The process has to end without their threads, which are named as those of lanes are."""

    async def with_own_threads() -> T:
        loop = asyncio.get_running_loop()
        threads = ThreadPoolExecutor(thread_name_prefix=f"{NAME_PREFIX}call")
        loop.set_default_executor(threads)
        try:
            return await main
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            loop.set_default_executor(ThreadPoolExecutor(1))  # idle, and what `asyncio.run` waits for

    return asyncio.run(with_own_threads())


async def on_own_thread(call: Callable[..., T], *args: Any) -> T:
    """As `asyncio.to_thread`, whose threads may all be taken by calls of the user's. For calls that return."""
    thread = LaneThread("own")
    try:
        return await asyncio.wrap_future(thread.submit(lambda: call(*args)))
    finally:
        thread.close()
