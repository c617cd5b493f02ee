"""Who tells of a rank that is lost: whoever asks it, else whoever looks at idle ones."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.controller.role_tasks import Loop, RoleTasks
from headrace.runtime.signal import Signal
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.runtime.workers import WorkerLost
from headrace.training.idle_losses import IdleLosses


def trainer(reason: str = "exit code 3", rank: int = 0) -> WorkerLost:
    return WorkerLost(rank, reason, worker=f"trainer/{rank}")


def test_one_that_nobody_asks_is_told_soon_and_one_that_is_asked_by_its_call() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        changed, lost = Signal(), dict[int, WorkerLost]()
        losses = IdleLosses(changed, runtime.clock, 60.0, lambda: lost)
        watch = runtime.spawn(losses.raised(), "watch")
        await runtime.clock.sleep(100.0)
        with losses.asking([0, 1]):
            lost[1] = trainer(rank=1)
            changed.notify()
            await runtime.clock.sleep(100.0)
            assert not watch.done()
        del lost[1]  # it was seen to
        await runtime.clock.sleep(100.0)
        assert not watch.done()
        with losses.asking([1]):
            lost[0] = trainer()
            changed.notify()
            await runtime.clock.sleep(3.0)
        with pytest.raises(WorkerLost, match="trainer/0"):
            watch.result()

    run_virtually(main)


class GoesOn:
    async def run(self) -> None:
        await asyncio.Event().wait()


class Acts:
    """Waits for rows, until it is told to stop."""

    has_stepped = False

    def __init__(self, fails: WorkerLost | None = None) -> None:
        self.stopped = asyncio.Event()
        self._fails = fails

    async def run(self) -> None:
        await self.stopped.wait()
        fails, self._fails = self._fails, None
        if fails is not None:
            raise fails


async def mended(runtime: VirtualRuntime, actor: Acts, stopping_after: float) -> list[WorkerLost]:
    """Losses that the run was mended after, of a trainer that is lost after ten seconds."""
    of: Any = SimpleNamespace
    seen, lost = list[WorkerLost](), True

    class Group:
        name = "trainer"
        may_come_back = False
        can_be_lost = True

        async def lost_while_idle(self) -> None:
            await runtime.clock.sleep(10.0)
            if lost:
                raise trainer()
            await asyncio.Event().wait()

    async def after(loss: WorkerLost, is_stopping: object) -> None:
        nonlocal lost
        lost = False
        seen.append(loss)
        actor.stopped.clear()

    parts = of(stop=actor.stopped.set, actor=actor, models=of(groups=[Group()]), flow=of(is_finished=False))
    more: dict[str, Any] = {"followers": GoesOn(), "relays": None, "returns": (), "functions": GoesOn()}
    role: Any = actor
    loop = Loop(rollout=GoesOn(), columns=(), critic=None, actor=role, evaluator=None, gap=None, watch=None, **more)
    back: Any = of(after=after, is_midway=False)
    stopping = runtime.spawn(runtime.clock.sleep(stopping_after), "stop request")
    assert await RoleTasks(loop, parts, runtime, back).run(stopping, []) is None
    return seen


def test_the_run_is_mended_while_the_actor_waits_for_rows_and_once() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        assert [lost.reason for lost in await mended(runtime, Acts(), 100.0)] == ["exit code 3"]
        (lost,) = await mended(runtime, Acts(fails=trainer("it hangs in a micro-batch")), 100.0)
        assert lost.reason == "it hangs in a micro-batch", "who asked it knows more"

    run_virtually(main)


def test_a_run_that_was_told_to_stop_ends_without_it() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        class Ends(Acts):
            """Its batch's steps take a while."""

            async def run(self) -> None:
                await runtime.clock.sleep(30.0)

        assert await mended(runtime, Ends(), 5.0) == []
        assert runtime.clock.now() == 30.0

    run_virtually(main)
