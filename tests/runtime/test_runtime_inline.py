"""The inline runtime: lanes keep order, waits have deadlines, nothing outlives it."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.runtime.inline import InlineRuntime, SystemClock
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.signal import Signal


def test_calls_on_a_lane_run_one_after_another_in_order_on_one_thread() -> None:
    async def main() -> None:
        runtime = InlineRuntime()
        seen: list[tuple[int, int]] = []

        def work(number: int) -> None:
            time.sleep(0.001)
            seen.append((number, threading.get_ident()))

        await asyncio.gather(*(runtime.compute("lane", work, number) for number in range(20)))
        assert [number for number, _ in seen] == list(range(20))
        assert len({thread for _, thread in seen}) == 1
        await runtime.close()

    asyncio.run(main())


def test_lanes_run_beside_each_other_and_the_loop() -> None:
    async def main() -> None:
        runtime = InlineRuntime()
        meet = threading.Barrier(2, timeout=5)
        await asyncio.gather(runtime.compute("a", meet.wait), runtime.compute("b", meet.wait))
        await runtime.close()

    asyncio.run(main())


def test_each_call_is_wrapped_on_its_lanes_thread() -> None:
    async def main() -> None:
        seen: list[tuple[str, str, int]] = []

        @contextmanager
        def around(lane: str) -> Iterator[None]:
            seen.append(("begin", lane, threading.get_ident()))
            yield
            seen.append(("end", lane, threading.get_ident()))

        runtime = InlineRuntime(around)
        thread = await runtime.compute("lane", threading.get_ident)
        assert seen == [("begin", "lane", thread), ("end", "lane", thread)]
        await runtime.close()

    asyncio.run(main())


def test_errors_reach_the_caller() -> None:
    async def main() -> None:
        runtime = InlineRuntime()
        with pytest.raises(ZeroDivisionError):
            await runtime.compute("lane", lambda: 1 // 0)
        await runtime.close()

    asyncio.run(main())


def test_close_cancels_tasks_joins_lanes_and_takes_no_more_work() -> None:
    async def main() -> None:
        runtime = InlineRuntime()
        task = runtime.spawn(asyncio.sleep(60), "sleeper")
        await runtime.compute("lane", int)
        before = threading.active_count()
        await runtime.close()
        assert task.cancelled()
        assert threading.active_count() <= before
        with pytest.raises(RuntimeError, match="closed"):
            await runtime.compute("lane", int)

    asyncio.run(main())


def test_wait_for_names_what_it_waited_for() -> None:
    async def main() -> None:
        with pytest.raises(WaitTimeout, match=r"waited 0\.0 s for a token; giving up"):
            await SystemClock().wait_for(asyncio.sleep(60), 0.01, "a token")

    asyncio.run(main())


def test_wait_for_lets_the_work_s_own_timeout_through() -> None:
    async def fails() -> None:
        raise TimeoutError("mine")

    async def main() -> None:
        with pytest.raises(TimeoutError, match="mine"):
            await SystemClock().wait_for(fails(), 5, "it")

    asyncio.run(main())


def test_a_signal_wakes_all_its_waiters_once() -> None:
    async def main() -> None:
        signal, clock = Signal(), SystemClock()
        waiters = [asyncio.create_task(signal.wait(clock, 5, "news")) for _ in range(3)]
        await asyncio.sleep(0)
        signal.notify()
        await asyncio.gather(*waiters)
        with pytest.raises(WaitTimeout, match="news"):
            await signal.wait(clock, 0.01, "news")

    asyncio.run(main())
