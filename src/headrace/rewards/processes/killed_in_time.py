"""Processes that score, and can be killed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Any

from headrace.observe.durations import Durations
from headrace.rewards.outcome import Verdict
from headrace.rewards.processes.clearing import Clearing
from headrace.rewards.processes.queue import Call, CallQueue
from headrace.rewards.processes.reward_process import Launch
from headrace.rewards.processes.slot import Slot
from headrace.runtime.protocol import Clock


class WorkerPool:
    """Processes of one kind that score one call at a time each.

    A reward that raises, hangs, ends its process or gives no finite number fails its own call, with a reason; a
    process that is killed or dies is replaced. A call can run twice: when the process died of the call before it.
    """

    def __init__(
        self, launch: Launch, *, users: Sequence[int], timeout_s: float, clock: Clock, times: Durations
    ) -> None:
        """A process for each of `users`, whom its samples run as if the run is root's. `times` is told how long calls
        took, from when a process began them."""
        self._clock = clock
        self._times = times
        self._queue = CallQueue()
        self._clearing = Clearing(clock)
        self._slots = [Slot(self._queue, launch.as_user(user), timeout_s, clock, self._clearing) for user in users]
        self._queue.takers.extend(self._slots)
        self._tasks: list[asyncio.Task[None]] = []
        self._ids = count()

    async def start(self) -> None:
        """Launch the processes. Raises ConfigError if a function does not load or cannot be called."""
        starts = await asyncio.gather(*(slot.open() for slot in self._slots), return_exceptions=True)
        for failure in starts:
            if failure is not None:
                await self.close()
                raise failure
        self._tasks = [asyncio.create_task(slot.serve(), name="reward slot") for slot in self._slots]

    async def ask(self, place: int, arguments: list[Any]) -> Verdict:
        """What the scorer at `place` says, within `timeout_s` of its turn. Every call before it is bounded likewise."""
        if not self._tasks:
            raise RuntimeError("the reward pool is not started, or closed")
        call_id = next(self._ids)
        call = Call(call_id, [call_id, place, arguments], asyncio.get_running_loop().create_future())
        self._queue.put(call)
        verdict = await call.outcome
        if call.began is not None:
            self._times.add(call.age(self._clock.now()))
        return verdict

    async def close(self) -> None:
        """Kill every process and cancel every call, as if its caller had been cancelled. Idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(slot.close() for slot in self._slots))
        self._queue.cancel()
        await self._clearing.close()
