"""Everything in one process and one event loop; blocking work on named lanes, one thread each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from headrace.runtime.protocol import Clock, WaitTimeout

T = TypeVar("T")


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait_for(self, awaitable: Awaitable[T], seconds: float, what: str) -> T:
        """See `Clock.wait_for`. A TimeoutError raised by `awaitable` itself passes through unchanged."""
        try:
            async with asyncio.timeout(seconds) as scope:
                return await awaitable
        except TimeoutError as error:
            if scope.expired():
                raise WaitTimeout(what, seconds) from error
            raise


class InlineRuntime:
    """The runtime of one machine, of notebooks, debuggers and tests.

    A lane is made when it is first used. `around` makes, from a lane's name, what each call on that lane is wrapped in,
    on the lane's own thread. `turns` names lanes that share one thread: their calls take turns.
    """

    def __init__(
        self,
        around: Callable[[str], AbstractContextManager[None]] = lambda lane: nullcontext(),
        clock: Clock | None = None,
        turns: Collection[str] = (),
    ) -> None:
        self._clock: Clock = clock or SystemClock()
        self._around = around
        self._turns = turns
        self._lanes: dict[str, ThreadPoolExecutor] = {}
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._closed = False

    @property
    def clock(self) -> Clock:
        return self._clock

    async def compute(self, lane: str, function: Callable[..., T], *args: Any) -> T:
        """See `Runtime.compute`."""
        if self._closed:
            raise RuntimeError(f"the runtime is closed; lane {lane!r} takes no more work")
        thread = "turns" if lane in self._turns else lane
        executor = self._lanes.get(thread)
        if executor is None:
            executor = self._lanes[thread] = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"headrace-{thread}")

        def call() -> T:
            with self._around(lane):
                return function(*args)

        return await asyncio.get_running_loop().run_in_executor(executor, call)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks[id(task)] = task
        task.add_done_callback(lambda done: self._tasks.pop(id(done), None))
        return task

    async def close(self) -> None:
        """See `Runtime.close`. Errors of tasks that nobody awaited are not raised here."""
        tasks = [task for task in self._tasks.values() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._closed = True
        lanes, self._lanes = list(self._lanes.values()), {}
        for executor in lanes:
            await asyncio.to_thread(executor.shutdown, wait=True, cancel_futures=True)
