"""A limit whose clock stands still while somebody else's return is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace.runtime.patience import Patience
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.virtual import VirtualRuntime, run_virtually


def virtually(body: Callable[[VirtualRuntime], Awaitable[None]]) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        await body(runtime)

    run_virtually(main)


async def outage(runtime: VirtualRuntime, patience: Patience, begin: float, seconds: float) -> None:
    await runtime.clock.sleep(begin)
    with patience.still.standing():
        await runtime.clock.sleep(seconds)


@pytest.mark.parametrize(("needs", "ends_at"), [(9.0, 9.0), (59.0, 59.0), (61.0, None)])
def test_the_seconds_of_outages_do_not_count(needs: float, ends_at: float | None) -> None:
    """Ten seconds, and outages from 2 to 42 and, within that, from 32 to 52."""

    async def body(runtime: VirtualRuntime) -> None:
        patience = Patience(runtime.clock, 10.0)
        outages = [runtime.spawn(outage(runtime, patience, *each), "outage") for each in ((2.0, 40.0), (32.0, 20.0))]
        if ends_at is None:
            with pytest.raises(WaitTimeout, match=r"waited 10\.0 s for an answer"):
                await patience.wait_for(asyncio.sleep(needs), "an answer")
            assert runtime.clock.now() == pytest.approx(60.0)
        else:
            await patience.wait_for(asyncio.sleep(needs), "an answer")
            assert runtime.clock.now() == pytest.approx(ends_at)
        for each in outages:
            await each

    virtually(body)


def test_what_is_waited_for_may_raise_a_timeout_of_its_own_and_gives_its_result() -> None:
    async def raises() -> int:
        raise TimeoutError("mine")

    async def answers() -> int:
        await asyncio.sleep(1.0)
        return 3

    async def body(runtime: VirtualRuntime) -> None:
        patience = Patience(runtime.clock, 10.0)
        assert await patience.wait_for(answers(), "an answer") == 3
        with pytest.raises(TimeoutError, match="mine"):
            await patience.wait_for(raises(), "an answer")
        assert patience.left() == pytest.approx(9.0)
        assert patience.still.listeners == []

    virtually(body)


def test_one_that_has_no_time_left_ends_at_once_unless_it_stands_still() -> None:
    async def body(runtime: VirtualRuntime) -> None:
        patience = Patience(runtime.clock, 1.0)
        await runtime.clock.sleep(2.0)
        with pytest.raises(WaitTimeout):
            await patience.wait_for(asyncio.sleep(0.5), "an answer")
        with patience.still.standing():
            await patience.wait_for(asyncio.sleep(5.0), "an answer")

    virtually(body)
