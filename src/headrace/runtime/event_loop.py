"""The event loop of a command: nothing that the user's code leaves on a thread holds it up at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from headrace.runtime.lane_thread import NAME_PREFIX, LaneThread

T = TypeVar("T")


def run_to_end(make: Callable[[], Coroutine[Any, Any, T]], what: str) -> T:
    """The result of the coroutine that `make` makes, in an event loop of its own.

    As `asyncio.run`, which waits for every call of `asyncio.to_thread`, but for calls that never return: workflows and
    environments make some. The process has to end without their threads, which are named as those of lanes are. Raises
    ConfigError where a loop runs already, as in a notebook, before anything is begun. `what` names the caller.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_with_own_threads(make))
    from headrace.config.errors import ConfigError  # all of config/, which worker processes do without

    raise ConfigError(
        f"{what} needs an event loop of its own, and is called where one runs already, as in a notebook; call what "
        "`import headrace` has of it, as headrace.train, or run it from a shell (in a notebook: !headrace ...)"
    )


async def _with_own_threads(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    loop = asyncio.get_running_loop()
    threads = ThreadPoolExecutor(thread_name_prefix=f"{NAME_PREFIX}call")
    loop.set_default_executor(threads)
    try:
        return await make()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        loop.set_default_executor(ThreadPoolExecutor(1))  # idle, and what `asyncio.run` waits for


async def on_own_thread(call: Callable[..., T], *args: Any) -> T:
    """As `asyncio.to_thread`, whose threads may all be taken by calls of the user's. For calls that return."""
    thread = LaneThread("own")
    try:
        return await asyncio.wrap_future(thread.submit(lambda: call(*args)))
    finally:
        thread.close()
