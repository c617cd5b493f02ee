"""The loop of a command ends, whatever is left on threads."""

import asyncio
import threading

import pytest

from headrace.runtime.event_loop import on_own_thread, run_to_end


def test_calls_that_never_return_do_not_hold_the_loop_and_leave_room_for_ours() -> None:
    held = threading.Event()

    async def main() -> int:
        hung = [asyncio.create_task(asyncio.to_thread(held.wait)) for _ in range(50)]
        await asyncio.sleep(0)
        assert await on_own_thread(lambda one: one + 1, 6) == 7
        for task in hung:
            task.cancel()
        await asyncio.gather(*hung, return_exceptions=True)
        return 3

    try:
        assert run_to_end(main, "a test") == 3
    finally:
        held.set()


def test_errors_pass_through() -> None:
    async def main() -> None:
        with pytest.raises(KeyError):
            await on_own_thread({}.__getitem__, "x")
        raise ValueError("of the run")

    with pytest.raises(ValueError, match="of the run"):
        run_to_end(main, "a test")


def test_a_call_that_raises_stop_iteration_ends_all_the_same() -> None:
    """Which no future of an event loop can hold."""

    async def main() -> None:
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            await asyncio.wait_for(on_own_thread(lambda: next(iter(()))), 5.0)

    asyncio.run(main())
