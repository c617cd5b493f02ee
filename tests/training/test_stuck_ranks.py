"""Of ranks that make their passes together the one is named that hangs, and none that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from headrace.runtime.local.service import STANDING
from headrace.runtime.progress import Standing
from headrace.runtime.protocol import Clock
from headrace.runtime.signal import Signal
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.runtime.workers import Handle, WorkerError, WorkerLost
from headrace.training.layouts.ranks import Layout
from headrace.training.rank_workers import RankWorkers
from headrace.training.stuck_ranks import least_far

WAITS, WORKS = Standing(7, waits=True), Standing(7, waits=False)
FURTHER, BEHIND = Standing(9, waits=False), Standing(3, waits=False)


def stuck(rank: int, standing: Standing) -> str:
    lane = f"trainer/{rank}".removesuffix("/0")
    return (
        f"its process ended with exit code 1; its last words (log): {lane} is stuck: no layer has ended for 31 s, of "
        f"which 30 are allowed (runtime.stuck.layer_s); {standing}"
    )


@pytest.mark.parametrize("standing", [WAITS, FURTHER, Standing(0, waits=False)])
def test_where_a_call_stood_is_read_from_the_last_words_of_its_process(standing: Standing) -> None:
    assert Standing.told_in(stuck(0, standing)) == standing
    assert Standing.told_in(f"it has a part of the model alone, since {stuck(0, standing)}") == standing
    assert Standing.told_in("its process ended with signal SIGKILL") is None


@pytest.mark.parametrize(
    ("standings", "counts", "least"),
    [
        ({0: WAITS, 1: WORKS}, True, [1]),
        ({0: WAITS, 1: FURTHER}, True, [1]),
        ({0: FURTHER, 1: WORKS, 2: FURTHER}, True, [1]),
        ({0: FURTHER, 1: WORKS, 2: WAITS}, False, [0, 1]),
        ({0: WAITS, 1: WAITS}, True, [0, 1]),
        ({0: WORKS, 1: WORKS, 2: BEHIND, 3: BEHIND}, True, [2, 3]),
        ({0: BEHIND}, True, [0]),
    ],
)
def test_one_that_waits_itself_is_not_waited_for_and_of_the_others_the_one_that_is_least_far_is(
    standings: dict[int, Standing], counts: bool, least: list[int]
) -> None:
    assert least_far(standings, counts=counts) == least


class Ranks:
    """`Workers` whose ranks hang in a pass, or wait in it until another ends; the first of which ends as stuck."""

    def __init__(
        self, clock: Clock, first: int, standings: Mapping[int, Standing | None], silent: tuple[int, ...] = ()
    ) -> None:
        """`standings`: by rank; None of one whose pass fails as `first` ends. `silent`: that do not answer."""
        self.handles = [Handle(f"trainer/{rank}", rank, "") for rank in standings]
        self.lost: dict[int, str] = {}
        self.changed = Signal()
        self._clock = clock
        self._first = first
        self._standings = standings
        self._silent = silent

    async def call(self, method: str, *args: Any, rank: int, what: str, seconds: float | None = None) -> list[Any]:
        standing = self._standings[rank]
        if method == STANDING:
            if rank in self.lost:
                raise WorkerLost(rank, self.lost[rank], worker=f"trainer/{rank}")
            if rank in self._silent:
                await self.changed.wait_until(lambda: rank in self.lost, self._clock, 600.0, lambda: what)
                raise WorkerLost(rank, self.lost[rank], worker=f"trainer/{rank}")
            return [None if standing is None else [standing.marks, standing.waits]]
        if rank == self._first:
            assert standing is not None
            await asyncio.sleep(0.01)
            await self.kill(rank, stuck(rank, standing))
        while rank not in self.lost:
            await asyncio.sleep(0.01)
            if standing is None and self.lost:
                raise WorkerError(
                    rank, "RuntimeError", "connection closed by peer", worker=f"trainer/{rank}", trace="…"
                )
        raise WorkerLost(rank, self.lost[rank], worker=f"trainer/{rank}")

    async def kill(self, rank: int, reason: str) -> None:
        self.lost.setdefault(rank, reason)
        self.changed.notify()


def named(
    layout: Layout, first: int, standings: Mapping[int, Standing | None], silent: tuple[int, ...] = ()
) -> WorkerLost:
    """What a pass of all raises, soon; the first time and ever after."""

    async def main(runtime: VirtualRuntime) -> WorkerLost:
        workers = Ranks(runtime.clock, first, standings, silent)
        ranks = RankWorkers(workers, runtime.clock, 1.0, layout)  # type: ignore[arg-type]
        every: dict[int, tuple[()]] = dict.fromkeys(range(layout.size), ())
        with pytest.raises(WorkerLost) as raised:
            await ranks.each("accumulate", every, what="a pass")
        assert runtime.clock.now() < 3.0
        with pytest.raises(WorkerLost) as again:
            await ranks.each("accumulate", every, what="a pass")
        assert again.value.worker == raised.value.worker
        assert sorted(workers.lost) == list(range(layout.size))
        return raised.value

    return run_virtually(main)


def test_one_that_waits_for_the_one_that_hangs_is_not_named_though_it_is_found_to_be_stuck_first() -> None:
    lost = named(Layout(tp=2), 0, {0: WAITS, 1: WORKS})
    assert lost.worker == "trainer/1"
    assert lost.reason.startswith("it hangs, and others wait for it: trainer/0 is lost: its process ended")
    assert "runtime.stuck.layer_s" in lost.reason


def test_others_that_end_with_the_one_that_is_stuck_leave_it_alone_to_be_named() -> None:
    """Their connections to it break."""
    lost = named(Layout(tp=2, cp=2), 1, {0: None, 1: WORKS, 2: None, 3: None})
    assert (lost.worker, lost.reason) == ("trainer/1", stuck(1, WORKS))


def test_one_that_does_not_answer_is_named() -> None:
    lost = named(Layout(dp=3, zero=3), 1, {0: WAITS, 1: WORKS, 2: WORKS}, silent=(2,))
    assert lost.worker == "trainer/2"
    assert lost.reason.startswith("it does not answer, and others wait for it: trainer/1 is lost: ")


def test_those_that_cannot_be_told_apart_are_all_named() -> None:
    lost = named(Layout(tp=3), 1, {0: WORKS, 1: WORKS, 2: FURTHER})
    assert lost.worker == "trainer/1"
    assert "any of trainer/0, trainer/1 may be the one that hangs" in lost.reason


def test_stages_are_not_compared_by_their_marks() -> None:
    lost = named(Layout(pp=2), 0, {0: FURTHER, 1: WORKS})
    assert "any of trainer/0, trainer/1 may be the one that hangs" in lost.reason
