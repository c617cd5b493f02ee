"""The inline runtime: lanes keep order, waits have deadlines, nothing outlives it."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

import pytest

from headrace.runtime import inline
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


class Alternating:
    """A placement that gives every call another thread, if it may."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str]]] = []
        self.wrapped: list[tuple[str, str, int]] = []

    def thread(self, lane: str, busy: Collection[str]) -> str:
        self.asked.append((lane, list(busy)))
        return f"thread {len(self.asked)}"

    @contextmanager
    def around(self, thread: str) -> Iterator[None]:
        self.wrapped.append(("begin", thread, threading.get_ident()))
        yield
        self.wrapped.append(("end", thread, threading.get_ident()))

    def rebalance(self) -> None: ...


def test_each_call_is_wrapped_on_the_thread_that_the_placement_names() -> None:
    async def main() -> None:
        placement = Alternating()
        runtime = InlineRuntime(placement)
        threads = [await runtime.compute("lane", threading.get_ident) for _ in range(2)]
        assert threads[0] != threads[1]
        assert placement.wrapped == [
            (edge, f"thread {number}", thread)
            for number, thread in enumerate(threads, start=1)
            for edge in ("begin", "end")
        ]
        await runtime.close()

    asyncio.run(main())


def test_a_lane_keeps_its_thread_and_its_order_while_it_has_calls_in_flight() -> None:
    async def main() -> None:
        placement = Alternating()
        runtime = InlineRuntime(placement)
        seen: list[int] = []

        def work(number: int) -> int:
            time.sleep(0.001)
            seen.append(number)
            return threading.get_ident()

        threads = await asyncio.gather(*(runtime.compute("lane", work, number) for number in range(10)))
        assert seen == list(range(10))
        assert len(set(threads)) == 1
        assert placement.asked == [("lane", [])]
        await runtime.close()

    asyncio.run(main())


def test_a_cancelled_call_leaves_its_lane_busy_until_its_work_has_ended() -> None:
    async def main() -> None:
        placement = Alternating()
        runtime = InlineRuntime(placement)
        begun, end = threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            end.wait(5)

        call = asyncio.create_task(runtime.compute("long", work))
        await asyncio.to_thread(begun.wait, 5)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await runtime.compute("other", int)
        end.set()
        await runtime.compute("long", int)
        await runtime.compute("other", int)
        assert placement.asked == [("long", []), ("other", ["long"]), ("other", [])]
        await runtime.close()

    asyncio.run(main())


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_call_gave_is_gone_with_whoever_had_it(fails: bool) -> None:
    """Not with the next collection: it may be a model, or a batch of tensors."""

    class Large:
        pass

    def call() -> Large:
        made = Large()
        left.append(weakref.ref(made))
        if fails:
            raise ValueError("of the test")
        return made

    left: list[weakref.ref[Large]] = []

    async def main() -> None:
        runtime = InlineRuntime()
        with suppress(ValueError):
            await runtime.compute("lane", call)
        for _ in range(100):
            if left[0]() is None:
                break
            await asyncio.sleep(0.01)
        assert left[0]() is None
        await runtime.close()

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


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


def test_close_leaves_a_call_behind_that_never_returns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(inline, "_SOON_S", 0.01)
    monkeypatch.setattr(inline, "_CLOSING_S", 0.05)
    begun, hold = threading.Event(), threading.Event()

    def hang() -> bool:
        begun.set()
        return hold.wait()

    async def main() -> None:
        runtime = InlineRuntime()
        hung = asyncio.ensure_future(runtime.compute("mine", hang))
        queued = asyncio.ensure_future(runtime.compute("mine", int))
        await asyncio.to_thread(begun.wait)
        await runtime.close()
        hold.set()
        with pytest.raises(asyncio.CancelledError):
            await queued
        assert await hung

    asyncio.run(main())
    assert "the last call on lane 'mine' did not return; it is left behind" in caplog.text
