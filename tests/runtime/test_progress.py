"""Work that gets on, and work that does not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from headrace.runtime.inline import InlineRuntime
from headrace.runtime.progress import Look, Marks, Progress, Standing, Stuck, current, mark, marked_by, rest, working


def run(main: Callable[[InlineRuntime], Coroutine[Any, Any, None]], limits: dict[str, float]) -> None:
    async def whole() -> None:
        runtime = InlineRuntime(copying=False, limits=limits)
        try:
            await main(runtime)
        finally:
            await runtime.close()

    asyncio.run(whole())


def test_a_limit_is_thirty_seconds_and_five_times_the_longest_so_far() -> None:
    progress = Progress({"chunk": 7.0})
    assert [progress.limit(unit) for unit in ("layer", "chunk")] == [300.0, 7.0], "the first may take longer"
    for seconds in (2.0, 4.0, 3.0):
        progress.took("layer", seconds)
        progress.took("chunk", seconds)
    assert [progress.limit(unit) for unit in ("layer", "chunk", "decode_step")] == [50.0, 7.0, 300.0]
    progress.took("decode_step", 0.0)
    assert progress.limit("decode_step") == 30.0


def test_only_what_lies_between_two_marks_counts_and_only_time_in_which_one_could_look() -> None:
    progress = Progress({"layer": 10.0})
    marks = Marks(progress)
    look = Look(progress, marks)
    assert look.after(100.0) is None, "nothing was said"
    assert look.after(100.0) is None
    marks.mark("layer")
    assert [look.after(2.0) for _ in range(6)] == [None] * 6
    assert look.after(2.0) == ("layer", 12.0)
    marks.mark("layer")
    assert look.after(2.0) is None, "it goes on"
    assert [look.after(4.0) for _ in range(3)] == [None, None, ("layer", 12.0)]
    marks.rest()
    assert [look.after(100.0) for _ in range(3)] == [None] * 3


def test_a_call_that_stands_still_is_given_up_and_its_lane_goes_on() -> None:
    held = threading.Event()

    def hangs() -> None:
        mark("decode_step")
        held.wait(60.0)

    async def main(runtime: InlineRuntime) -> None:
        began = time.monotonic()
        first = asyncio.ensure_future(runtime.compute("engine", hangs))
        behind = asyncio.ensure_future(runtime.compute("engine", lambda: "never"))
        with pytest.raises(
            Stuck, match=r"engine is stuck: no decode step has ended for .* s, of which 1 are allowed"
        ) as told:
            await first
        assert Standing.told_in(str(told.value)) == Standing(1, waits=False)
        with pytest.raises(Stuck, match="engine is stuck"):
            await behind
        assert time.monotonic() - began < 10
        assert await runtime.compute("engine", lambda: threading.current_thread().name) == "headrace-engine"
        held.set()
        await asyncio.sleep(0.1)  # what ends at last disturbs nobody

    run(main, {"decode_step": 1.0})


def test_a_call_that_nobody_waits_for_any_more_does_not_keep_its_lane() -> None:
    held = threading.Event()

    def hangs() -> None:
        mark("layer")
        held.wait(60.0)

    async def main(runtime: InlineRuntime) -> None:
        first = asyncio.ensure_future(runtime.compute("trainer", hangs))
        await asyncio.sleep(0.1)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(Stuck):
            await runtime.compute("trainer", lambda: "behind it")
        assert await runtime.compute("trainer", lambda: "anew") == "anew"
        held.set()

    run(main, {"layer": 1.0})


def test_what_ends_as_it_is_given_up_hangs_nobody() -> None:
    """The call ends at about its limit, with others behind it."""

    def slow(seconds: float) -> str:
        mark("layer")
        time.sleep(seconds)
        return "done"

    async def main(runtime: InlineRuntime) -> None:
        for extra in (0.9, 1.0, 1.1):
            waiting = [
                asyncio.ensure_future(runtime.compute("a", slow, 2.0 + extra if first else 0.0)) for first in (1, 0, 0)
            ]
            found = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 20.0)
            assert all(one == "done" or isinstance(one, Stuck) for one in found), found

    run(main, {"layer": 2.0})


def test_what_gets_on_may_take_long() -> None:
    def works() -> str:
        with working("layer"):
            for _ in range(8):
                time.sleep(0.4)
                mark("layer")
        time.sleep(3.0)  # of this it says nothing
        return "done"

    async def main(runtime: InlineRuntime) -> None:
        assert await runtime.compute("trainer", works) == "done"

    run(main, {"layer": 1.0})


def test_a_call_that_has_not_begun_can_still_be_cancelled() -> None:
    async def main(runtime: InlineRuntime) -> None:
        begun, ran = threading.Event(), []

        def first() -> None:
            begun.set()
            time.sleep(0.3)

        at_work = asyncio.ensure_future(runtime.compute("a", first))
        waiting = asyncio.ensure_future(runtime.compute("a", ran.append, 1))
        await asyncio.to_thread(begun.wait)
        waiting.cancel()
        await at_work
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await runtime.compute("a", lambda: None)
        assert not ran

    run(main, {})


def test_nobody_looks_outside_of_lanes() -> None:
    mark("layer")
    rest()
    assert current() is None
    marks = Marks(Progress())
    with marked_by(marks):
        mark("chunk")
        assert current() is marks
        assert marks.now[1] == "chunk"
    assert current() is None


@pytest.mark.parametrize(("where", "waits"), [("torch/distributed", True), ("torch/nn", False)])
def test_how_far_a_call_is_and_whether_it_waits_for_other_processes_is_seen_from_outside(
    tmp_path: Path, where: str, waits: bool
) -> None:
    file = tmp_path / where / "exchange.py"
    file.parent.mkdir(parents=True)
    file.write_text("import time\n\n\ndef exchanged(begun):\n    begun()\n    time.sleep(0.5)\n")
    found = spec_from_file_location("exchange", file)
    assert found is not None
    assert found.loader is not None
    exchange = module_from_spec(found)
    found.loader.exec_module(exchange)
    begun = threading.Event()

    def computes() -> None:
        for _ in range(3):
            mark("layer")
        exchange.exchanged(begun.set)

    async def main(runtime: InlineRuntime) -> None:
        assert runtime.standing("trainer") is None
        call = asyncio.ensure_future(runtime.compute("trainer", computes))
        await asyncio.to_thread(begun.wait)
        await asyncio.sleep(0.1)
        assert runtime.standing("trainer") == Standing(3, waits=waits)
        await call
        await asyncio.sleep(0)
        assert runtime.standing("trainer") is None

    run(main, {})
