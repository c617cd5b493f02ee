"""Scores responses in child processes that can be killed."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from headrace.config.data import RewardConfig
from headrace.rollout.rewards.builtin import BUILTIN_REWARDS
from headrace.rollout.rewards.outcome import RewardOutcome
from headrace.rollout.rewards.slot import Call, Slot
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
        self._queue: deque[Call] = deque()
        self._slots = [Slot(self._queue, config, clock, log_path) for _ in range(config.workers)]
        self._tasks: list[asyncio.Task[None]] = []
        self._ids = count()

    async def start(self) -> None:
        """Launch the processes. Raises ConfigError if the function does not load or cannot be called."""
        try:
            async with asyncio.TaskGroup() as group:
                for slot in self._slots:
                    group.create_task(slot.open())
        except BaseException as error:
            await self.close()
            raise (error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error) from None
        self._tasks = [asyncio.create_task(slot.serve(), name="reward slot") for slot in self._slots]

    async def score(self, response: str, row: dict[str, Any], prompt: str | list[dict[str, str]]) -> RewardOutcome:
        """The reward of `response`, within `timeout_s` of its turn. Every call before it is bounded likewise."""
        if not self._tasks:
            raise RuntimeError("the reward pool is not started, or closed")
        call_id = next(self._ids)
        call = Call(call_id, [call_id, response, row, prompt], asyncio.get_running_loop().create_future())
        self._queue.append(call)
        for slot in sorted(self._slots, key=lambda slot: slot.in_flight):
            slot.feed()
        return await call.outcome

    async def close(self) -> None:
        """Kill every process and cancel every call. Idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for slot in self._slots:
            await slot.close()
        while self._queue:
            self._queue.popleft().outcome.cancel()
