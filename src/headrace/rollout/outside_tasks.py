"""Episodes that agents outside of the run play: offered, taken by whoever asks, and ended by that or by the run.

An episode is with one agent at a time. Until that has heard of it, its clock stands still.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any, Protocol

from headrace.errors import HeadraceError
from headrace.experience.gate import Opening
from headrace.runtime.patience import StandStill
from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.runtime.signal import Signal

_MOST_REMEMBERED = 10_000
"""Tasks that have ended, of which it is still known that they were there."""
_LATELY = 8
"""Offers from which the next one is foretold."""
_AT_ONCE_S = 0.5
"""Offers that are less far apart count as one."""
_RETRY_S, _SOONEST_RETRY_S, _LATEST_RETRY_S = 5, 1, 60

TAKER = "an agent to ask for a task"
"""What an evaluation waits for, if nobody is at work."""
BY_AGENT, BY_RUN = "its agent has ended it", "the run has ended it: its time was up, or it left"


class TaskFailed(HeadraceError):
    """The agent says that its episode failed."""


class UnknownTask(HeadraceError):
    """There is no such task."""


class TaskEnded(HeadraceError):
    """The task has ended before."""


class TasksClosed(HeadraceError):
    """No task comes any more."""


def task_id(api_key: str) -> str:
    """Of the episode with this key. It tells nothing of the key."""
    return hashlib.sha256(api_key.encode(errors="surrogateescape")).hexdigest()[:16]


Deliver = Callable[[float | None, str | None], Awaitable[None]]
"""Given the reward and what failed. Raises TaskEnded."""


class OutsideTask:
    """One episode."""

    def __init__(
        self,
        api_key: str,
        base_url: str,
        told: Mapping[str, Any],
        standing: Callable[[], AbstractContextManager[None]],
        *,
        evaluation: bool = False,
        deliver: Deliver | None = None,
    ) -> None:
        """`told`: what its agent is told of it, as JSON, beside where its API is. `standing`: within, its clock stands
        still. `evaluation`: of a held-out set. `deliver`: tells its end where it is played, if that is elsewhere."""
        self.api_key = api_key
        self.evaluation = evaluation
        self._deliver = deliver
        self.id = task_id(api_key)
        self.base_url = base_url
        self.told = told
        self.reward: float | None = None
        """The last one that was told."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """By its agent. Raises TaskFailed."""
        self._standing = standing
        self._stands: ExitStack | None = None

    @property
    def stands(self) -> bool:
        """Whether its clock does."""
        return self._stands is not None

    def wait(self) -> None:
        """Nobody has it."""
        self._stands = ExitStack()
        self._stands.enter_context(self._standing())

    def go_on(self) -> None:
        """An agent has it, or it is over."""
        if self._stands is not None:
            self._stands.close()
            self._stands = None

    async def told_end(self, failure: str | None) -> None:
        """Its agent says that it is over; it failed if there is a `failure`. Raises TaskEnded: it was, where it is
        played."""
        if self._deliver is not None:
            await self._deliver(self.reward, failure)
        if not self.ended.done():
            self.end(failure)

    def end(self, failure: str | None = None) -> None:
        """It has ended; it failed if there is a `failure`."""
        if failure is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(TaskFailed(f"the agent says: {failure}"))


class TaskBoard(Protocol):
    """Where episodes are offered."""

    def offer(self, task: OutsideTask) -> None:
        """Until it is taken. Whoever offers it says `leave` in the end."""

    def leave(self, task: OutsideTask) -> None:
        """Nobody plays it any more."""

    async def ended(self, task: OutsideTask, clock: Clock, quiet_s: float) -> None:
        """Until its agent has ended it. Raises TaskFailed; of an evaluation, WaitTimeout after so many seconds in which
        nobody was at work on any task: nothing else would end that."""


class OutsideTasks:
    """Those of a run: a `TaskBoard`. First offered, first taken."""

    def __init__(self) -> None:
        self.changed = Signal()
        """When a task is offered, taken, ended or over, and when somebody asks."""
        self.address = ""
        """Where they are to be had, as `http://127.0.0.1:8100`, once somebody listens."""
        self._waiting: deque[OutsideTask] = deque()
        self._playing: dict[str, OutsideTask] = {}
        self._quiet_since = -math.inf
        """Since when nobody is at work on any, unless somebody is."""
        self._takers: deque[asyncio.Future[OutsideTask]] = deque()
        self._over: dict[str, str] = {}
        """By the ids of tasks that have ended, how."""
        self._offered: deque[float] = deque(maxlen=_LATELY)
        self._busy: StandStill | None = None
        self._clock: Clock | None = None
        self._is_closed = False
        self._opening: Callable[[], Opening] | None = None

    def foretell(self, opening: Callable[[], Opening]) -> None:
        """From now on it can be asked when a group starts next."""
        self._opening = opening

    def listen(self, address: str, clock: Clock) -> None:
        """From now on agents can ask there."""
        self.address, self._clock, self._busy = address, clock, StandStill(clock)

    def close(self) -> None:
        """Whoever asks, or has asked, is told that no task comes any more."""
        self._is_closed = True
        takers, self._takers = self._takers, deque()
        for taker in takers:
            if not taker.done():
                taker.set_exception(_closed())

    def offer(self, task: OutsideTask) -> None:
        """See `TaskBoard.offer`."""
        if self._clock is not None:
            now = self._clock.now()
            if not self._offered or now - self._offered[-1] > _AT_ONCE_S:
                self._offered.append(now)
        task.wait()
        task.ended.add_done_callback(lambda _: self._has_changed())
        self._waiting.append(task)
        self._hand_out()

    async def ended(self, task: OutsideTask, clock: Clock, quiet_s: float) -> None:
        """See `TaskBoard.ended`."""
        offered = clock.now()
        while task.evaluation and not task.ended.done():
            now = clock.now()
            end = (now if self._playing else max(offered, self._quiet_since)) + quiet_s
            if now >= end:
                raise WaitTimeout(TAKER, quiet_s)
            with suppress(WaitTimeout):
                await self.changed.wait(clock, end - now, TAKER)
        await task.ended

    def leave(self, task: OutsideTask, how: str = BY_RUN) -> None:
        """See `TaskBoard.leave`. `how` it ended, unless its agent has ended it."""
        ended = task.ended.done() and not task.ended.cancelled()
        if ended:
            task.ended.exception()
        if task in self._waiting:
            self._waiting.remove(task)
        task.go_on()
        self._stop_playing(task)
        self._over[task.id] = BY_AGENT if ended else how
        while len(self._over) > _MOST_REMEMBERED:
            del self._over[next(iter(self._over))]
        self._has_changed()

    def take_now(self) -> OutsideTask | None:
        """The next one, if there is one. Raises TasksClosed."""
        if self._is_closed:
            raise _closed()
        if not self._waiting:
            return None
        task = self._waiting.popleft()
        self._begin(task)
        return task

    async def take(self) -> OutsideTask:
        """The next one, once there is one. Raises TasksClosed."""
        if (task := self.take_now()) is not None:
            return task
        taker: asyncio.Future[OutsideTask] = asyncio.get_running_loop().create_future()
        self._takers.append(taker)
        self._has_changed()
        try:
            return await taker
        except asyncio.CancelledError:
            if taker.done() and not taker.cancelled() and taker.exception() is None:
                self.put_back(taker.result())
            raise
        finally:
            if taker in self._takers:
                self._takers.remove(taker)

    def heard(self, task: OutsideTask) -> None:
        """Whoever took it has heard of it: its clock goes on."""
        task.go_on()

    def put_back(self, task: OutsideTask) -> None:
        """Whoever took it never heard of it."""
        if self._stop_playing(task) and not task.ended.done():
            self._waiting.appendleft(task)
            self._hand_out()

    def find(self, id: str) -> OutsideTask:
        """One that is being played. Raises UnknownTask, TaskEnded."""
        task = self._playing.get(id)
        if task is not None and not task.ended.done():
            return task
        if task is not None or id in self._over:
            raise is_over(id, self._over.get(id, BY_AGENT))
        raise UnknownTask(
            f"there is no task {id[:40]!r}; ids are those that POST /tasks gave since the run was started, or resumed"
        )

    def retry(self) -> tuple[int, str]:
        """Whole seconds until tasks are offered again, and what has to come before, in words: as far as the schedule
        knows; else as far as the last offers tell."""
        if self._clock is None or self._opening is None:
            return _RETRY_S, "the run to begin"
        opening = self._opening()
        if opening.seconds is not None:
            return whole_seconds(opening.seconds), opening.describe()
        return seconds_to_next(self._offered, self._clock.now()), opening.describe()

    @property
    def is_unattended(self) -> bool:
        """Whether tasks wait, and nobody is at work on any."""
        return bool(self._waiting) and not self._playing

    def busy_s(self) -> float:
        """Seconds so far in which tasks waited because agents were at work on others."""
        return 0.0 if self._busy is None else self._busy.seconds()

    def describe(self) -> str:
        """Who waits for whom; empty if nobody does."""
        waiting, playing = len(self._waiting), len(self._playing)
        if not waiting:
            return f"{_tasks(playing)} with agents outside" if playing else ""
        if playing:
            return f"{_tasks(waiting)} not taken, and {playing} with agents outside"
        return f"{_tasks(waiting)} not taken, and no agent asks for one: POST {self.address}/tasks"

    def _hand_out(self) -> None:
        while self._waiting and self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                task = self._waiting.popleft()
                self._begin(task)
                taker.set_result(task)
        self._has_changed()

    def _begin(self, task: OutsideTask) -> None:
        self._playing[task.id] = task
        self._has_changed()

    def _stop_playing(self, task: OutsideTask) -> bool:
        """Whether somebody had it."""
        had = self._playing.pop(task.id, None) is not None
        if had and not self._playing and self._clock is not None:
            self._quiet_since = self._clock.now()
        return had

    def _has_changed(self) -> None:
        busy = self._busy
        if busy is not None and busy.stands != bool(self._waiting and self._playing):
            (busy.end if busy.stands else busy.begin)()
        self.changed.notify()


def seconds_to_next(times: Sequence[float], now: float) -> int:
    """From `times` of offers, in their order, whole seconds to the next one, if they go on as they came; within 1 and
    60."""
    if len(times) < 2:
        return _RETRY_S
    apart = (times[-1] - times[0]) / (len(times) - 1)
    return whole_seconds(times[-1] + apart - now)


def whole_seconds(seconds: float) -> int:
    """After which to ask again; within 1 and 60."""
    return min(max(math.ceil(seconds), _SOONEST_RETRY_S), _LATEST_RETRY_S)


def is_over(id: str, how: str) -> TaskEnded:
    return TaskEnded(f"task {id} is over: {how}; nothing more can be said of it")


def _tasks(count: int) -> str:
    return "1 task is" if count == 1 else f"{count} tasks are"


def _closed() -> TasksClosed:
    return TasksClosed("the run is over, and has no task any more")
