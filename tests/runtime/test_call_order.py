"""Calls of an actor begin as they were asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.ray.call_order import CallOrder
from headrace.runtime.virtual import VirtualRuntime, run_virtually

_SECONDS = 30.0
MANY = 6


class Calls:
    """What an actor does with them."""

    def __init__(self, runtime: VirtualRuntime) -> None:
        self._clock = runtime.clock
        self.missed: list[str] = []
        self.order = CallOrder(runtime.clock, _SECONDS, self.missed.append)
        self.begun: list[str] = []

    def come(self, *numbers: str) -> list[asyncio.Task[None]]:
        return [asyncio.ensure_future(self._call(number)) for number in numbers]

    async def _call(self, number: str) -> None:
        try:
            await self.order.turn(number)
            self.begun.append(number)
            await self._clock.sleep(1.0)
        finally:
            self.order.ended(number)


@given(st.permutations(range(MANY)), st.permutations(range(MANY)), st.lists(st.booleans(), min_size=MANY))
def test_each_asker_s_calls_begin_in_its_order_however_they_come(
    first: Sequence[int], second: Sequence[int], pauses: Sequence[bool]
) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        calls = Calls(runtime)
        tasks = []
        for place, (one, other) in enumerate(zip(first, second, strict=True)):
            tasks += calls.come(f"a.0>x.{one}", f"a.0>y.{other}")
            if pauses[place]:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        for asker in ("a.0>x", "a.0>y"):
            assert [each for each in calls.begun if each.startswith(asker)] == [f"{asker}.{n}" for n in range(MANY)]
        assert runtime.clock.now() == 1.0, "they go on together, and none has waited for a deadline"
        assert not calls.missed

    run_virtually(main)


@pytest.mark.parametrize("has_begun", [False, True])
def test_one_that_is_stopped_holds_up_nobody(has_begun: bool) -> None:
    """Before its turn, or before it has done anything."""

    async def main(runtime: VirtualRuntime) -> None:
        calls = Calls(runtime)
        (stopped, *rest) = calls.come("a.1", "a.2")
        if has_begun:
            await asyncio.sleep(0)
        stopped.cancel()
        await asyncio.wait([stopped])
        calls.order.ended("a.1")  # a task that was cancelled at once does nothing
        assert calls.begun == []
        await asyncio.gather(*rest, *calls.come("a.0"))
        assert calls.begun == ["a.0", "a.2"]
        assert runtime.clock.now() == 1.0

    run_virtually(main)


def test_one_that_does_not_come_is_told_of_once_and_the_rest_begin_in_order() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        calls = Calls(runtime)
        tasks = calls.come("a.0", "a.4")
        await runtime.clock.sleep(10.0)
        tasks += calls.come("a.3", "b.0")
        await runtime.clock.sleep(10.0)
        assert calls.begun == ["a.0", "b.0"]
        await asyncio.gather(*tasks)
        assert calls.begun == ["a.0", "b.0", "a.3", "a.4"]
        assert calls.missed == ["call a.4 begins before 1, 2, which had not come after 30 s"]
        await asyncio.gather(*calls.come("a.5", "a.1"))
        assert calls.begun[-2:] == ["a.5", "a.1"], "what comes after all begins at once"
        assert runtime.clock.now() == 32.0

    run_virtually(main)


def test_it_knows_which_have_come_until_their_asker_is_forgotten() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        calls = Calls(runtime)
        tasks = calls.come("a.0", "a.2")
        await asyncio.sleep(0)
        assert [calls.order.has_come(f"a.{place}") for place in range(4)] == [True, False, True, False]
        tasks += calls.come("a.1")
        await asyncio.gather(*tasks)
        assert calls.order.has_come("a.2")
        calls.order.forget(lambda asker: asker == "a")
        assert not calls.order.has_come("a.2")

    run_virtually(main)
