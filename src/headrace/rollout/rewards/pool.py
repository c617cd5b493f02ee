"""Scores responses in child processes that can be killed."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from headrace.config.data import RewardConfig
from headrace.rollout.rewards.builtin import BUILTIN_REWARDS
from headrace.rollout.rewards.outcome import RewardOutcome
from headrace.rollout.rewards.queue import Call, CallQueue
from headrace.rollout.rewards.slot import Slot
from headrace.runtime.protocol import Clock


def required_columns(config: RewardConfig) -> tuple[str, ...]:
    """Columns that every row must have for this reward."""
    return (config.answer_column,) if config.function in BUILTIN_REWARDS else ()


class Scorer(Protocol):
    """What an episode needs to be scored."""

    async def score(self, response: str, row: dict[str, Any], prompt: str | list[dict[str, str]]) -> RewardOutcome: ...


class RewardPool:
    """`config.workers` processes that score one response at a time each.

    A reward that raises, hangs, ends its process or gives no finite number fails its own call, with a reason; a
    process that is killed or dies is replaced. A call can run twice: when the process died of the call before it.
    """

    def __init__(self, config: RewardConfig, *, clock: Clock, log_path: Path | None = None) -> None:
        """`log_path` takes what the reward function prints; it is thrown away unless given."""
        self._queue = CallQueue()
        self._slots = [Slot(self._queue, config, clock, log_path) for _ in range(config.workers)]
        self._queue.takers.extend(self._slots)
        self._tasks: list[asyncio.Task[None]] = []
        self._ids = count()

    async def start(self) -> None:
        """Launch the processes. Raises ConfigError if the function does not load or cannot be called."""
        starts = await asyncio.gather(*(slot.open() for slot in self._slots), return_exceptions=True)
        for failure in starts:
            if failure is not None:
                await self.close()
                raise failure
        self._tasks = [asyncio.create_task(slot.serve(), name="reward slot") for slot in self._slots]

    async def score(self, response: str, row: dict[str, Any], prompt: str | list[dict[str, str]]) -> RewardOutcome:
        """The reward of `response`, within `timeout_s` of its turn. Every call before it is bounded likewise."""
        if not self._tasks:
            raise RuntimeError("the reward pool is not started, or closed")
        call_id = next(self._ids)
        call = Call(call_id, [call_id, response, row, prompt], asyncio.get_running_loop().create_future())
        self._queue.put(call)
        return await call.outcome

    async def close(self) -> None:
        """Kill every process and cancel every call, as if its caller had been cancelled. Idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for slot in self._slots:
            await slot.close()
        self._queue.cancel()
