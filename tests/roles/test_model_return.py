"""When a model that only scores is brought back no more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from lone_worker import LoneWorker

from headrace.roles.model_return import ModelReturn
from headrace.runtime.placing import NoRoom
from headrace.runtime.supervision import Often
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.runtime.workers import WorkerLost


def test_losses_too_often_within_a_time_are_raised_though_it_answers_between() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        workers: Any = LoneWorker()
        returns = ModelReturn(workers, runtime.clock, workers.restart, Often(3, 600.0))
        for pause_s in (700.0, 100.0, 100.0):
            await returns.after(workers.lose())
            returns.answered()
            await runtime.clock.sleep(pause_s)
        with pytest.raises(
            WorkerLost, match=r"exit code 3; that was so 3 times within 600 s \(runtime\.restarts\.work"
        ):
            await returns.after(workers.lose())

    run_virtually(main)


def test_losses_without_an_answer_are_raised_and_others_are_borne_for_ever() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        workers: Any = LoneWorker()
        returns = ModelReturn(workers, runtime.clock, workers.restart)
        for _ in range(50):
            await returns.after(workers.lose())
            returns.answered()
        for _ in range(7):
            await returns.after(workers.lose())
        with pytest.raises(WorkerLost, match="that was so 8 times in a row: mend it"):
            await returns.after(workers.lose())

    run_virtually(main)


def test_where_no_node_has_room_in_time_it_is_not_tried_again() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        workers: Any = LoneWorker()
        tried = []

        async def restart() -> None:
            tried.append(runtime.clock.now())
            raise WorkerLost(0, "has waited 300 s for room", worker="reference/0") from NoRoom("1 GPU is short")

        with pytest.raises(WorkerLost, match="has waited 300 s for room"):
            await ModelReturn(workers, runtime.clock, restart).after(workers.lose())
        assert len(tried) == 1

    run_virtually(main)


def test_one_that_is_lost_while_nobody_asks_it_is_told_of_and_brought_back_once() -> None:
    """The second time it was asked something: the loss is one, and so is what follows it."""

    async def main(runtime: VirtualRuntime) -> None:
        workers: Any = LoneWorker()
        told, kept = list[tuple[float, str]](), list[str]()
        returns = ModelReturn(workers, runtime.clock, workers.restart, Often(3, 600.0))
        returns.tell_to(kept.append, lambda kind, data: told.append((runtime.clock.now(), data["worker"])))
        keeper = runtime.spawn(returns.run(), "return")
        await runtime.clock.sleep(100.0)
        workers.lose()
        await runtime.clock.sleep(5.0)
        assert not workers.lost
        await returns.after(workers.lose())
        await runtime.clock.sleep(5.0)
        assert [(at < 102.0, worker) for at, worker in told] == [(True, "reference/0"), (False, "reference/0")]
        assert (kept, returns.lives) == (["reference/0"] * 2, 2)
        workers.lose()
        with pytest.raises(WorkerLost, match="that was so 3 times within 600 s"):
            await keeper

    run_virtually(main)


def test_a_return_that_is_cancelled_in_its_midst_is_gone_on_with() -> None:
    """As where whoever asked it is ended for another loss: what supplies it where it is now has not been told."""

    async def main(runtime: VirtualRuntime) -> None:
        workers: Any = LoneWorker()
        returns = ModelReturn(workers, runtime.clock, workers.restart)
        may_go_on, supplied = asyncio.Event(), list[float]()

        async def once_back() -> None:
            await may_go_on.wait()
            supplied.append(runtime.clock.now())

        returns.once_back = once_back
        keeper = runtime.spawn(returns.run(), "a keeper")
        asking = runtime.spawn(returns.after(workers.lose()), "who asked it")
        await runtime.clock.sleep(0.5)
        assert not workers.lost
        asking.cancel()
        may_go_on.set()
        await runtime.clock.sleep(5.0)
        assert len(supplied) == 1
        await returns.after(workers.lose())
        assert len(supplied) == 2
        keeper.cancel()

    run_virtually(main)
