"""What rollout workers have for agents outside: offered in the run's own process, which tells them what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any

from headrace.rollout.agent_outside import OutsidePlayer
from headrace.rollout.outside_tasks import BY_RUN, OutsideTask, TaskFailed, is_over
from headrace.rollout.relayed_tasks import LeftTask, OfferedTask
from headrace.runtime.protocol import Runtime, WaitTimeout
from headrace.runtime.workers import WorkerError, WorkerLost, Workers

_SILENT_S = 120.0
"""In which a worker says that it is there: six times what it takes. Its loop may stand before."""
_TOLD_S = 60.0
"""In which a worker hears something. Its loop may stand before: what is not heard in time ends the worker."""
LOST = "the rollout worker that played it was lost; its group is played again"


class TaskRelay:
    """Follows each worker's tasks from its beginning to its end. Whose worker is lost is over."""

    def __init__(self, player: OutsidePlayer, runtime: Runtime, blocked_s: float) -> None:
        """`blocked_s`: for how long a worker's event loop may stand (`rollout.block_timeout_s`)."""
        self._player = player
        self._runtime = runtime
        self._blocked_s = blocked_s
        self._following: list[asyncio.Task[None]] = []

    def began(self, workers: Workers[Any], rank: int) -> None:
        """The worker is there, or there again."""
        self._following = [each for each in self._following if not each.done()]
        follows = self._follow(workers, rank)
        self._following.append(self._runtime.spawn(follows, f"tasks of rollout/{rank}"))

    async def close(self) -> None:
        """Nobody is followed any more: what they had is over."""
        for each in self._following:
            each.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)

    async def _follow(self, workers: Workers[Any], rank: int) -> None:
        tasks: dict[str, _Relayed] = {}
        how = LOST
        try:
            within_s = self._blocked_s + _SILENT_S
            items = workers.stream("tasks", rank=rank, what="its tasks for agents outside", seconds=within_s)
            async with aclosing(items):
                async for news in items:
                    for each in news:
                        if isinstance(each, OfferedTask):
                            relayed = _Relayed(
                                each, self._player, self._runtime, workers, rank, self._blocked_s + _TOLD_S
                            )
                            tasks[relayed.task.id] = relayed
                        else:
                            assert isinstance(each, LeftTask)
                            tasks.pop(each.id).left(by_agent=each.by_agent)
        except WorkerLost:
            pass
        except (WorkerError, WaitTimeout) as error:  # nobody could take its tasks any more
            await workers.kill(rank, f"its tasks for agents outside were not told: {error}")
        except asyncio.CancelledError:
            how = BY_RUN
            raise
        finally:
            for relayed in tasks.values():
                relayed.left(how)


class _Relayed:
    """One task, on the run's board."""

    def __init__(
        self,
        offered: OfferedTask,
        player: OutsidePlayer,
        runtime: Runtime,
        workers: Workers[Any],
        rank: int,
        told_s: float,
    ) -> None:
        """`told_s`: in which its worker hears something."""
        self._told_s = told_s
        self._player = player
        self._runtime = runtime
        self._workers = workers
        self._rank = rank
        self._stands = self._told_to_stand = True
        self._is_telling = False
        self._watch: asyncio.Task[None] | None = None
        self.task = OutsideTask(
            offered.api_key,
            offered.base_url,
            offered.told,
            self._standing,
            evaluation=offered.evaluation,
            deliver=self._deliver,
        )
        player.tasks.offer(self.task)
        if offered.evaluation:
            self._watch = runtime.spawn(self._unless_nobody_is_at_work(), f"task {self.task.id}")

    def left(self, how: str = BY_RUN, *, by_agent: bool = False) -> None:
        """Nobody plays it any more."""
        if by_agent and not self.task.ended.done():
            self.task.end()
        self._told_to_stand = False  # nobody is told any more
        self._player.tasks.leave(self.task, how)
        if self._watch is not None:
            self._watch.cancel()

    @contextmanager
    def _standing(self) -> Iterator[None]:
        self._say(stands=True)
        try:
            yield
        finally:
            self._say(stands=False)

    def _say(self, *, stands: bool) -> None:
        self._stands = stands
        if stands != self._told_to_stand and not self._is_telling:
            self._is_telling = True
            self._runtime.spawn(self._tell(), f"whether task {self.task.id} is taken")

    async def _tell(self) -> None:
        try:
            while self._stands != self._told_to_stand:
                stands = self._stands
                with suppress(WaitTimeout):  # it is told again, for as long as its worker is there
                    await self._call("task_stands", self.task.id, stands)
                    self._told_to_stand = stands
        except (WorkerLost, WorkerError):
            pass  # whoever follows the worker hears of it
        finally:
            self._is_telling = False

    async def _deliver(self, reward: float | None, failure: str | None) -> None:
        """Raises TaskEnded. That the agent does not wait for the answer changes nothing."""
        ending = self._runtime.spawn(self._end(reward, failure, None), f"end of task {self.task.id}")
        how = await asyncio.shield(ending)
        if how is not None:
            raise is_over(self.task.id, how)

    async def _end(self, reward: float | None, failure: str | None, nobody_s: float | None) -> str | None:
        """How it had ended before, if it had."""
        try:
            (ended,) = await self._call("task_ended", self.task.id, reward, failure, nobody_s)
        except WaitTimeout as late:  # it may end it still: so that what is said of it is so
            await self._workers.kill(self._rank, f"it was not told of an end: {late}")
            return LOST
        except (WorkerLost, WorkerError):
            return LOST
        return None if ended else BY_RUN

    async def _unless_nobody_is_at_work(self) -> None:
        try:
            with suppress(TaskFailed):
                await self._player.tasks.ended(self.task, self._runtime.clock, self._player.episode_timeout_s)
        except WaitTimeout as late:
            await self._end(None, None, late.seconds)

    async def _call(self, method: str, *args: Any) -> list[Any]:
        return await self._workers.call(
            method, *args, rank=self._rank, what=f"task {self.task.id} to be told", seconds=self._told_s
        )
