"""Tasks that a worker plays and the run gives out: what its agents do is known there, and its loss is told here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any, ClassVar

import pytest

from headrace.config.agent import OutsideAgent
from headrace.roles.task_relay import TaskRelay
from headrace.roles.workers.rollout_types import ROLLOUT_TYPES
from headrace.rollout.agent_episode import AgentEpisode
from headrace.rollout.agent_outside import OutsidePlayer
from headrace.rollout.outside_tasks import OutsideTask, TaskEnded
from headrace.rollout.relayed_tasks import OfferedTask, TaskNews
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.patience import StandStill
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Host, Placement, WorkerLost, Workers

QUIET_S = 0.3
BLOCKED_S = 120.0


class Session:
    def __init__(self, clock: StandStill) -> None:
        self.standing = clock.standing


class Plays:
    """As much of a rollout worker as has to do with tasks."""

    kind: ClassVar[str] = "rollout"
    types: ClassVar[WireTypes] = ROLLOUT_TYPES

    def __init__(self, spec: str, host: Host) -> None:
        self._host = host
        self._player = OutsidePlayer(OutsideAgent(outside=True), QUIET_S)
        self._tasks = self._player.relayed()
        self._episodes: dict[str, asyncio.Task[Any]] = {}
        self._clocks: dict[str, StandStill] = {}

    async def begin(self, name: str, evaluation: bool) -> None:
        clock = self._clocks[name] = StandStill(self._host.clock)
        row = {"prompt": name, "answers": [1, 2.5, None]}
        episode = AgentEpisode(row, name, None, "http://127.0.0.1:7/episodes/3/v1", f"hr-{name}", "policy", f"g/{0}")
        if evaluation:
            episode = AgentEpisode(
                row, name, None, episode.base_url, episode.api_key, "policy", episode.name, evaluation=True
            )
        session: Any = Session(clock)
        self._episodes[name] = self._host.spawn(self._player.play(episode, session, self._host.clock), name)

    async def leave(self, name: str) -> None:
        self._episodes[name].cancel()
        await asyncio.gather(self._episodes[name], return_exceptions=True)

    async def result(self, name: str) -> list[Any]:
        """Its reward, or the name of what was raised with its words."""
        with suppress(Exception):
            await self._episodes[name]
        error = self._episodes[name].exception()
        return [None if error else self._episodes[name].result(), error and type(error).__name__, error and str(error)]

    async def stands(self, name: str) -> bool:
        return self._clocks[name].stands

    async def tasks(self) -> AsyncGenerator[list[TaskNews], None]:
        async for news in self._tasks.news(self._host.clock, 5.0):
            yield news

    async def task_stands(self, id: str, stands: bool) -> None:
        self._tasks.stands(id, stands=stands)

    async def task_ended(self, id: str, reward: float | None, failure: str | None, nobody_s: float | None) -> bool:
        return self._tasks.end(id, reward, failure, nobody_s)


class Run:
    def __init__(self, player: OutsidePlayer, workers: Workers[Plays], relay: TaskRelay) -> None:
        self.tasks, self.workers, self.relay = player.tasks, workers, relay

    async def begin(self, name: str, *, rank: int = 0, evaluation: bool = False) -> None:
        await self.workers.call("begin", name, evaluation, rank=rank, what="an episode")

    async def take(self) -> OutsideTask:
        return await asyncio.wait_for(self.tasks.take(), 5)

    async def ask(self, method: str, name: str, rank: int = 0) -> Any:
        (answer,) = await self.workers.call(method, name, rank=rank, what=method)
        return answer

    async def over(self, task: OutsideTask) -> str:
        """What is said of it once it is."""
        async with asyncio.timeout(5):
            while True:
                try:
                    self.tasks.find(task.id)
                except TaskEnded as error:
                    return str(error)
                await asyncio.sleep(0.005)

    async def until_stands(self, name: str, stands: bool) -> None:
        async with asyncio.timeout(5):
            while await self.ask("stands", name) != stands:  # noqa: ASYNC110 (nobody tells)
                await asyncio.sleep(0.005)


def relayed(test: Callable[[Run], Awaitable[None]], workers: int = 1) -> None:
    async def main() -> None:
        runtime = InlineRuntime(copying=True, types=ROLLOUT_TYPES)
        player = OutsidePlayer(OutsideAgent(outside=True), QUIET_S)
        player.tasks.listen("http://127.0.0.1:8100", runtime.clock)
        relay = TaskRelay(player, runtime, BLOCKED_S)
        try:
            group = await runtime.start(Plays, ["a"] * workers, Placement())
            for rank in range(workers):
                relay.began(group, rank)
            await asyncio.wait_for(test(Run(player, group, relay)), 20)
            await relay.close()
        finally:
            await runtime.close()

    asyncio.run(main())


def test_what_a_worker_plays_is_taken_here_and_ends_there() -> None:
    async def test(run: Run) -> None:
        await run.begin("a")
        task = await run.take()
        assert (task.told["row"], task.api_key) == ({"prompt": "a", "answers": [1, 2.5, None]}, "hr-a")
        assert task.base_url == "http://127.0.0.1:7/episodes/3/v1"
        task.reward = 0.25
        await task.told_end(None)
        assert await run.ask("result", "a") == [0.25, None, None]
        with pytest.raises(TaskEnded, match="its agent has ended it"):
            run.tasks.find(task.id)
        await run.begin("b")
        task = await run.take()
        await task.told_end("no luck")
        assert await run.ask("result", "b") == [None, "TaskFailed", "the agent says: no luck"]

    relayed(test)


def test_its_clock_stands_there_until_an_agent_has_heard_of_it() -> None:
    async def test(run: Run) -> None:
        await run.begin("a")
        task = await run.take()
        assert await run.ask("stands", "a")
        run.tasks.put_back(task)
        assert await run.take() is task
        assert await run.ask("stands", "a")
        run.tasks.heard(task)
        await run.until_stands("a", False)

    relayed(test)


def test_who_ends_what_was_ended_there_is_told_so() -> None:
    async def test(run: Run) -> None:
        await run.begin("a")
        task = await run.take()
        await run.ask("leave", "a")
        with pytest.raises(TaskEnded, match="the run has ended it"):
            await task.told_end(None)
        assert "the run has ended it" in await run.over(task)
        await run.begin("b")
        task = await run.take()
        ends = await asyncio.gather(task.told_end(None), task.told_end(None), return_exceptions=True)
        assert sorted(type(each).__name__ for each in ends) == ["NoneType", "TaskEnded"], "one of two"

    relayed(test)


def test_tasks_of_a_worker_that_is_lost_are_over_and_others_go_on() -> None:
    async def test(run: Run) -> None:
        await run.begin("a")
        lost = await run.take()
        await run.begin("b")
        await run.workers.kill(0, "on purpose")
        with pytest.raises(TaskEnded, match="the rollout worker that played it was lost"):
            await lost.told_end(None)
        assert "the rollout worker that played it was lost" in await run.over(lost)
        await run.begin("c", rank=1)
        other = await run.take()
        assert other.api_key == "hr-c", "what nobody had taken of the lost one is offered no more"
        other.reward = 1.0
        await other.told_end(None)
        assert (await run.ask("result", "c", rank=1))[0] == 1.0

    relayed(test, workers=2)


def test_a_worker_that_comes_back_is_listened_to_again() -> None:
    async def test(run: Run) -> None:
        await run.begin("a")
        old = await run.take()
        await run.workers.restart(0)
        run.relay.began(run.workers, 0)
        await run.begin("b")
        task = await run.take()
        assert task.api_key == "hr-b"
        with pytest.raises(TaskEnded):
            await old.told_end(None)
        await task.told_end(None)
        assert await run.ask("result", "b") == [None, None, None]

    relayed(test)


def test_an_evaluation_ends_only_where_nobody_is_at_work_on_any_worker() -> None:
    async def test(run: Run) -> None:
        await run.begin("held", evaluation=True)
        told = await run.ask("result", "held")
        assert told[1:] == [WaitTimeout.__name__, f"waited {QUIET_S:.1f} s for an agent to ask for a task; giving up"]
        await run.begin("a", rank=1)
        at_work = await run.take()
        await run.begin("held again", evaluation=True)
        await asyncio.sleep(3 * QUIET_S)  # an agent is at work on what another worker plays
        task = await run.take()
        assert task.api_key == "hr-held again"
        task.reward = 1.0
        await task.told_end(None)
        assert (await run.ask("result", "held again"))[0] == 1.0
        await at_work.told_end(None)

    relayed(test, workers=2)


def test_what_is_left_when_the_run_ends_is_over() -> None:
    async def test(run: Run) -> None:
        await run.begin("a")
        task = await run.take()
        await run.relay.close()
        with pytest.raises(TaskEnded, match="the run has ended it"):
            run.tasks.find(task.id)

    relayed(test)


class Slow:
    """A worker with one task, whose event loop stands while it is called the first times."""

    def __init__(self, runtime: VirtualRuntime, *, late: int) -> None:
        self._clock = runtime.clock
        self._late = late
        self.lost = asyncio.Event()
        self.told: list[tuple[Any, ...]] = []
        self.killed: list[str] = []

    async def stream(self, method: str, *, rank: int, what: str, seconds: float) -> AsyncGenerator[list[Any], None]:
        assert seconds > BLOCKED_S
        yield [OfferedTask("hr-a", "http://127.0.0.1:7/episodes/3/v1", {"row": {}}, False)]
        await self.lost.wait()
        raise WorkerLost(rank, "it was killed")

    async def call(self, method: str, *args: Any, rank: int, what: str, seconds: float) -> list[Any]:
        if self._late:
            self._late -= 1
            await self._clock.sleep(seconds)
            raise WaitTimeout(what, seconds)
        self.told.append((method, *args))
        return [True]

    async def kill(self, rank: int, reason: str) -> None:
        self.killed.append(reason)
        self.lost.set()


def relayed_slowly(test: Callable[[OutsidePlayer, Slow, VirtualRuntime], Awaitable[None]], *, late: int) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        player = OutsidePlayer(OutsideAgent(outside=True), 600.0)
        player.tasks.listen("http://127.0.0.1:8100", runtime.clock)
        relay, worker = TaskRelay(player, runtime, BLOCKED_S), Slow(runtime, late=late)
        workers: Any = worker
        relay.began(workers, 0)
        await test(player, worker, runtime)
        await relay.close()

    run_virtually(main)


def test_a_worker_that_did_not_hear_in_time_whose_clock_runs_is_told_again() -> None:
    async def test(player: OutsidePlayer, worker: Slow, runtime: VirtualRuntime) -> None:
        task = await player.tasks.take()
        player.tasks.heard(task)
        await runtime.clock.sleep(3 * (BLOCKED_S + 100))
        assert worker.told == [("task_stands", task.id, False)]
        assert not worker.killed

    relayed_slowly(test, late=2)


def test_a_worker_that_is_told_of_no_end_is_lost_as_its_agent_is_told() -> None:
    async def test(player: OutsidePlayer, worker: Slow, runtime: VirtualRuntime) -> None:
        task, began = await player.tasks.take(), runtime.clock.now()
        with pytest.raises(TaskEnded, match="the rollout worker that played it was lost"):
            await task.told_end(None)
        assert runtime.clock.now() - began > BLOCKED_S
        assert worker.told == []
        (reason,) = worker.killed
        assert reason.startswith("it was not told of an end: waited 180.0 s for task")

    relayed_slowly(test, late=10)
