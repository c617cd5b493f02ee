"""A wait with a limit, under virtual time: whatever the coroutine does is as without the limit, until that is up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from headrace.runtime.clock import LoopClock
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.virtual import VirtualLoop


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)


async def limited(coroutine: Coroutine[Any, Any, Any], seconds: float = 1.0) -> Any:
    return await LoopClock().wait_for(coroutine, seconds, "it")


async def of(value: Any, *sleeps: float) -> Any:
    for seconds in sleeps:
        await asyncio.sleep(seconds)
    if isinstance(value, Exception):
        raise value
    return value


@pytest.mark.parametrize("sleeps", [(), (0.0,), (0.5, 0.4), (0.0, 0.9, 0.0)])
@pytest.mark.parametrize("seconds", [1.0, 1.5])
def test_what_comes_in_time_is_given(sleeps: tuple[float, ...], seconds: float) -> None:
    assert run(limited(of("value", *sleeps), seconds)) == "value"
    with pytest.raises(KeyError):
        run(limited(of(KeyError(), *sleeps), seconds))
    with pytest.raises(TimeoutError, match="its own"):
        run(limited(of(TimeoutError("its own"), *sleeps), seconds))


def test_what_waits_for_nothing_is_given_without_any_time() -> None:
    assert run(limited(of("value"), 0.0)) == "value"


@pytest.mark.parametrize("sleeps", [(1.5,), (0.5, 0.6), (0.0, 0.5, 0.6)])
def test_the_limit_counts_from_the_beginning(sleeps: tuple[float, ...]) -> None:
    async def times() -> tuple[float, bool]:
        loop, ended = asyncio.get_running_loop(), False

        async def late() -> None:
            nonlocal ended
            try:
                await of("value", *sleeps)
            finally:
                ended = True

        with pytest.raises(WaitTimeout, match="it"):
            await limited(late())
        return loop.time(), ended

    assert run(times()) == (1.0, True)


def test_who_goes_on_when_it_is_cancelled_waits_on() -> None:
    """It cleans up, by more waits; then the time is up all the same, or the caller is cancelled."""

    async def cleans_up(log: list[str]) -> str:
        try:
            await asyncio.sleep(5.0)
        except asyncio.CancelledError:
            await asyncio.sleep(0.25)
            log.append("clean")
            raise
        return "never"

    async def stays(log: list[str]) -> str:
        try:
            await asyncio.sleep(5.0)
        except asyncio.CancelledError:
            log.append("stays")
        await asyncio.sleep(0.25)
        return "value"

    async def both() -> None:
        loop, log = asyncio.get_running_loop(), list[str]()
        with pytest.raises(WaitTimeout):
            await limited(cleans_up(log))
        assert (loop.time(), log) == (1.25, ["clean"])
        task = asyncio.create_task(limited(cleans_up(log), 9.0))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (loop.time(), log) == (2.0, ["clean", "clean"])
        task = asyncio.create_task(limited(stays(log), 9.0))
        await asyncio.sleep(0.5)
        task.cancel()
        assert await task == "value"
        assert (loop.time(), log[2:]) == (2.75, ["stays"])

    run(both())


def test_one_that_nobody_awaits_any_more_is_closed() -> None:
    closed = []

    async def waits() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            closed.append(True)

    async def leave() -> None:
        coroutine = limited(waits(), 9.0)
        coroutine.send(None)
        coroutine.close()

    run(leave())
    assert closed == [True]
