"""Several coroutines as one: their results, their first error, and the order in which they end."""

from __future__ import annotations

import asyncio
import gc

import pytest

from headrace.runtime.together import to_the_end, together
from headrace.runtime.virtual import VirtualRuntime, run_virtually


def test_results_come_in_their_order_and_tasks_have_their_names() -> None:
    async def main(runtime: VirtualRuntime) -> list[tuple[int, str]]:
        async def one(number: int) -> tuple[int, str]:
            await runtime.clock.sleep(10.0 - number)
            task = asyncio.current_task()
            assert task is not None
            return number, task.get_name()

        assert await together([]) == []
        return await together((one(number) for number in range(3)), (f"task {number}" for number in range(3)))

    assert run_virtually(main) == [(0, "task 0"), (1, "task 1"), (2, "task 2")]


def test_the_first_error_ends_the_others_in_their_order() -> None:
    ended: list[tuple[int, float]] = []

    async def main(runtime: VirtualRuntime) -> None:
        async def one(number: int) -> None:
            try:
                await runtime.clock.sleep(5.0)
                if number == 12:
                    raise ValueError("twelve")
                await runtime.clock.sleep(100.0)
            except asyncio.CancelledError:
                ended.append((number, runtime.clock.now()))
                await runtime.clock.sleep(1.0)
                raise

        with pytest.raises(ValueError, match="twelve"):
            await together(one(number) for number in range(40))
        assert runtime.clock.now() == 6.0, "it waits until all have ended"

    run_virtually(main)
    assert ended == [(number, 5.0) for number in range(40) if number != 12]


def test_cancelling_it_ends_all() -> None:
    ended: list[int] = []

    async def main(runtime: VirtualRuntime) -> None:
        async def one(number: int) -> None:
            try:
                await runtime.clock.sleep(100.0)
            finally:
                ended.append(number)

        task = asyncio.ensure_future(together(one(number) for number in range(5)))
        await runtime.clock.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtually(main)
    assert ended == [0, 1, 2, 3, 4]


def test_an_error_in_the_turn_in_which_the_caller_is_cancelled_is_told_to_nobody() -> None:
    told: list[str] = []

    async def main(runtime: VirtualRuntime) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(str(context["message"])))

        async def one() -> None:
            await runtime.clock.sleep(1.0)
            caller.cancel()
            raise ValueError("one")

        caller = asyncio.ensure_future(together([one(), runtime.clock.sleep(9.0)]))
        with pytest.raises(asyncio.CancelledError):
            await caller
        gc.collect()

    run_virtually(main)
    assert not told


def test_who_is_cancelled_waits_for_what_goes_to_its_end() -> None:
    ended = []

    async def slow() -> None:
        await asyncio.sleep(0.01)
        ended.append("slow")

    async def main() -> None:
        task = asyncio.create_task(to_the_end(slow()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["slow"]
        assert await to_the_end(asyncio.sleep(0, "found")) == "found"

    asyncio.run(main())
