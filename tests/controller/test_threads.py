"""Threads: as many as the processors that are left, and never two teams at a time."""

import asyncio
import threading

import pytest
import torch

from headrace.controller.building.threads import ThreadShare
from headrace.runtime.inline import InlineRuntime


class Hands:
    """A clock that is set by hand."""

    time = 0.0

    def now(self) -> float:
        return self.time


@pytest.mark.parametrize("total", [1, 2, 3, 16])
def test_only_one_thread_ever_has_a_team(total: int) -> None:
    share = ThreadShare(total, Hands().now)
    for busy in ({}, {"trainer": "wide"}, {"engine": "wide"}, {"trainer": "wide", "engine": "engine"}):
        for lane in ("engine", "engine/1", "trainer", "weights", "other"):
            thread = share.thread(lane, busy)
            with share.around(thread):
                assert torch.get_num_threads() == 1 or thread == "wide"


def test_who_computes_alone_has_the_team() -> None:
    share = ThreadShare(2, Hands().now)
    assert share.thread("engine", busy={}) == share.thread("trainer", busy={}) == "wide"
    assert share.thread("trainer", busy={"engine": "wide"}) == "wide", "after the engine's step, not beside it"
    assert share.thread("engine", busy={"trainer": "wide"}) == "engine"
    assert share.thread("engine", busy={"weights": "weights"}) == "wide"
    assert share.thread("weights", busy={}) == "weights"


def test_of_several_engines_one_has_the_team_and_the_others_are_beside() -> None:
    share = ThreadShare(4, Hands().now)
    assert share.thread("engine/1", busy={}) == "wide"
    assert share.thread("engine", busy={"engine/1": "wide"}) == "engine"
    assert share.thread("engine/1", busy={"engine": "engine"}) == "wide", "nobody has the team"
    assert share.thread("engine/1", busy={"trainer": "wide", "engine": "engine"}) == "engine/1"


def test_on_one_processor_they_take_turns() -> None:
    share = ThreadShare(1, Hands().now)
    assert share.thread("engine", busy={"trainer": "wide"}) == share.thread("trainer", busy={}) == "wide"


def test_a_trainer_gives_up_the_engines_processor_in_the_midst_of_its_call() -> None:
    """And takes it back once the engine has rested for 20 ms: it makes many short calls."""
    hands = Hands()
    share = ThreadShare(4, hands.now)
    begun, end = threading.Event(), threading.Event()
    counts: list[int] = []

    def engine() -> None:
        with share.around("engine"):
            counts.append(torch.get_num_threads())
            begun.set()
            end.wait(5)

    with share.around("wide"):
        counts.append(torch.get_num_threads())
        beside = threading.Thread(target=engine)
        beside.start()
        begun.wait(5)
        share.rebalance()
        counts.append(torch.get_num_threads())
        end.set()
        beside.join()
        for hands.time in (0.01, 0.03):
            share.rebalance()
            counts.append(torch.get_num_threads())
    assert counts == [4, 1, 3, 3, 4]
    torch.set_num_threads(1)


def test_in_a_runtime_the_engine_moves_aside_while_the_trainer_computes() -> None:
    async def main() -> None:
        runtime = InlineRuntime(ThreadShare(2, Hands().now))
        begun, end = threading.Event(), threading.Event()

        def train() -> int:
            begun.set()
            end.wait(5)
            return threading.get_ident()

        training = asyncio.create_task(runtime.compute("trainer", train))
        await asyncio.to_thread(begun.wait, 5)
        aside = await runtime.compute("engine", threading.get_ident)
        end.set()
        wide = await training
        assert aside != wide
        assert await runtime.compute("engine", threading.get_ident) == wide
        await runtime.close()

    asyncio.run(main())
