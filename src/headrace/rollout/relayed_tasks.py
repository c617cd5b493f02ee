"""Episodes that a rollout worker plays, and the run's own process gives out to agents outside."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headrace.rollout.outside_tasks import TAKER, OutsideTask, TaskFailed
from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.runtime.signal import Signal


@dataclass(frozen=True, slots=True)
class OfferedTask:
    """One that may be taken."""

    api_key: str
    base_url: str
    """By the address that the worker listens on."""
    told: Mapping[str, Any]
    """See `OutsideTask`."""
    evaluation: bool


@dataclass(frozen=True, slots=True)
class LeftTask:
    """One that nobody plays any more."""

    id: str
    by_agent: bool
    """Its agent has ended it."""


TaskNews = OfferedTask | LeftTask


class RelayedTasks:
    """A `TaskBoard` of one worker: what is offered is told to the run's own process, which says what comes of it. So
    who takes what, and whether anybody is at work, is decided in one place."""

    def __init__(self) -> None:
        self._tasks: dict[str, OutsideTask] = {}
        self._news: list[TaskNews] = []
        self._changed = Signal()

    def offer(self, task: OutsideTask) -> None:
        """See `TaskBoard.offer`."""
        task.wait()
        self._tasks[task.id] = task
        self._tell(OfferedTask(task.api_key, task.base_url, task.told, task.evaluation))

    def leave(self, task: OutsideTask) -> None:
        """See `TaskBoard.leave`."""
        task.go_on()
        del self._tasks[task.id]
        ended = task.ended
        by_agent = ended.done() and not ended.cancelled() and isinstance(ended.exception(), TaskFailed | None)
        self._tell(LeftTask(task.id, by_agent))

    async def ended(self, task: OutsideTask, clock: Clock, quiet_s: float) -> None:
        """See `TaskBoard.ended`."""
        await task.ended

    async def news(self, clock: Clock, beat_s: float) -> AsyncGenerator[list[TaskNews], None]:
        """All that happens, in its order; nothing, as often as that, where nothing does. For one who listens."""
        while True:
            if not self._news:
                with suppress(WaitTimeout):
                    await self._changed.wait(clock, beat_s, "a task")
            news, self._news = self._news, []
            yield news

    def stands(self, id: str, *, stands: bool) -> None:
        """Whether no agent has it, so that its clock stands still."""
        task = self._tasks.get(id)
        if task is not None and task.stands != stands:
            (task.wait if stands else task.go_on)()

    def end(self, id: str, reward: float | None, failure: str | None, nobody_s: float | None) -> bool:
        """Its agent has ended it, with the last reward that it told, or a failure; or for `nobody_s` seconds nobody was
        at work on any task. False: it was over."""
        task = self._tasks.get(id)
        if task is None or task.ended.done():
            return False
        task.reward = reward
        if nobody_s is None:
            task.end(failure)
        else:
            task.ended.set_exception(WaitTimeout(TAKER, nobody_s))
        return True

    def _tell(self, news: TaskNews) -> None:
        self._news.append(news)
        self._changed.notify()
