"""Tasks for agents outside: who gets which, whose clock stands, and what is remembered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress

import pytest

from headrace.rollout.outside_tasks import (
    OutsideTask,
    OutsideTasks,
    TaskEnded,
    TaskFailed,
    TasksClosed,
    UnknownTask,
    seconds_to_next,
    task_id,
)
from headrace.runtime.inline import SystemClock
from headrace.runtime.patience import StandStill
from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.runtime.virtual import VirtualRuntime, run_virtually


class Board:
    def __init__(self) -> None:
        self.tasks = OutsideTasks()
        self.tasks.listen("http://127.0.0.1:8100", SystemClock())
        self.clocks: dict[str, StandStill] = {}

    def offer(self, key: str) -> OutsideTask:
        clock = self.clocks[key] = StandStill(SystemClock())
        task = OutsideTask(key, "http://127.0.0.1/v1", {"row": key}, clock.standing)
        self.tasks.offer(task)
        return task


def on(test: Callable[[Board], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(test(Board()), 10)

    asyncio.run(main())


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_the_first_that_was_offered_goes_to_the_first_who_asked() -> None:
    async def test(board: Board) -> None:
        first, second = board.offer("a"), board.offer("b")
        assert (board.tasks.take_now(), board.tasks.take_now(), board.tasks.take_now()) == (first, second, None)
        askers = [asyncio.ensure_future(board.tasks.take()) for _ in range(2)]
        await turn()
        third, fourth = board.offer("c"), board.offer("d")
        assert [await asker for asker in askers] == [third, fourth]

    on(test)


def test_a_clock_stands_still_until_its_taker_has_heard_of_the_task() -> None:
    async def test(board: Board) -> None:
        task = board.offer("a")
        assert board.tasks.take_now() is task
        assert board.clocks["a"].stands
        board.tasks.put_back(task)
        assert board.tasks.take_now() is task
        board.tasks.heard(task)
        assert not board.clocks["a"].stands
        board.tasks.leave(task)
        assert board.tasks.take_now() is None

    on(test)


def test_a_clock_goes_on_once_its_task_is_over_whoever_has_it() -> None:
    async def test(board: Board) -> None:
        waits, taken = board.offer("a"), board.offer("b")
        assert board.tasks.take_now() is waits
        board.tasks.put_back(waits)
        board.tasks.leave(waits)
        assert not board.clocks["a"].stands
        assert board.tasks.take_now() is taken
        board.tasks.leave(taken)
        assert not board.clocks["b"].stands

    on(test)


def test_what_its_taker_never_heard_of_goes_to_the_next_before_all_others() -> None:
    async def test(board: Board) -> None:
        asker = asyncio.ensure_future(board.tasks.take())
        await turn()
        first = board.offer("a")
        asker.cancel()  # the task is on its way to it
        with suppress(asyncio.CancelledError):
            await asker
        board.offer("b")
        assert board.tasks.take_now() is first

    on(test)


def test_who_asks_no_more_is_given_nothing() -> None:
    async def test(board: Board) -> None:
        asker = asyncio.ensure_future(board.tasks.take())
        await turn()
        asker.cancel()
        await turn()
        task = board.offer("a")
        assert board.tasks.is_unattended
        assert board.tasks.take_now() is task

    on(test)


def test_of_a_task_that_is_over_it_is_said_how() -> None:
    async def test(board: Board) -> None:
        task = board.offer("a")
        with pytest.raises(UnknownTask, match="no task"):
            board.tasks.find(task.id)  # nobody has it
        board.tasks.take_now()
        assert board.tasks.find(task.id) is task
        task.end("no luck")
        with pytest.raises(TaskEnded, match="its agent has ended it"):
            board.tasks.find(task.id)
        with pytest.raises(TaskFailed, match="the agent says: no luck"):
            await task.ended
        board.tasks.leave(task)
        other = board.offer("b")
        board.tasks.take_now()
        board.tasks.leave(other)
        with pytest.raises(TaskEnded, match="the run has ended it"):
            board.tasks.find(other.id)

    on(test)


def test_once_closed_nobody_waits() -> None:
    async def test(board: Board) -> None:
        asker = asyncio.ensure_future(board.tasks.take())
        await turn()
        board.tasks.close()
        with pytest.raises(TasksClosed):
            await asker
        with pytest.raises(TasksClosed):
            board.tasks.take_now()

    on(test)


def test_it_is_busy_while_some_are_played_and_others_wait() -> None:
    async def test(board: Board) -> None:
        tasks = board.tasks
        board.offer("a"), board.offer("b")
        assert tasks.is_unattended
        assert tasks.describe() == "2 tasks are not taken, and no agent asks for one: POST http://127.0.0.1:8100/tasks"
        assert tasks.busy_s() == 0
        first = tasks.take_now()
        assert first is not None
        assert tasks.describe() == "1 task is not taken, and 1 with agents outside"
        await asyncio.sleep(0.02)
        tasks.leave(first)
        spent = tasks.busy_s()
        assert spent >= 0.02
        await asyncio.sleep(0.02)
        assert tasks.busy_s() == spent

    on(test)


def evaluated(works: Callable[[OutsideTasks, Clock], Awaitable[None]]) -> list[float]:
    """When each of 64 tasks of an evaluation, offered one in each second, failed as nobody was at work for 100 s."""

    async def main(runtime: VirtualRuntime) -> list[float]:
        clock, tasks = runtime.clock, OutsideTasks()
        tasks.listen("http://127.0.0.1:8100", clock)

        async def play(number: int) -> float:
            await clock.sleep(number)
            task = OutsideTask(str(number), "http://127.0.0.1/v1", {}, nullcontext, evaluation=True)
            tasks.offer(task)
            try:
                with pytest.raises(WaitTimeout, match="an agent to ask for a task"):
                    await tasks.ended(task, clock, 100)
            finally:
                tasks.leave(task)
            return clock.now()

        async def play_all() -> list[float]:
            began = clock.now()
            return [end - began for end in await asyncio.gather(*map(play, range(64)))]

        ends, _ = await asyncio.gather(play_all(), works(tasks, clock))
        return ends

    return run_virtually(main)


def test_each_task_of_an_evaluation_waits_for_an_agent_once() -> None:
    async def nobody(tasks: OutsideTasks, clock: Clock) -> None:
        pass

    assert evaluated(nobody) == [number + 100 for number in range(64)]


def test_a_task_of_an_evaluation_waits_from_when_the_last_agent_stopped() -> None:
    async def one(tasks: OutsideTasks, clock: Clock) -> None:
        train = OutsideTask("train", "http://127.0.0.1/v1", {}, nullcontext)
        tasks.offer(train)
        for began, end in ((0, 20), (30, 250)):
            await clock.sleep(began - clock.now())
            assert tasks.take_now() is train
            await clock.sleep(end - began)
            tasks.put_back(train)
        tasks.leave(train)

    assert evaluated(one) == [350] * 64


def test_an_id_tells_nothing_of_the_key() -> None:
    assert task_id("hr-0-a") != task_id("hr-0-b")
    assert "hr-0" not in task_id("hr-0-a")


@pytest.mark.parametrize(
    ("times", "now", "seconds"),
    [
        ([], 3.0, 5),
        ([1.0], 3.0, 5),
        ([0.0, 10.0, 20.0], 21.0, 9),  # every ten seconds: at 30
        ([0.0, 10.0, 20.0], 21.5, 9),  # 8.5 are left
        ([0.0, 10.0, 20.0], 45.0, 1),  # it is late
        ([0.0, 1000.0], 1000.0, 60),
    ],
)
def test_the_next_offer_is_foretold_from_the_last_ones(times: list[float], now: float, seconds: int) -> None:
    assert seconds_to_next(times, now) == seconds
