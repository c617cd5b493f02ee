"""A model that scores rows is needed by nobody once all is trained."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.controller.role_tasks import Loop, RoleTasks
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.runtime.workers import WorkerLost

TRAINED_S, LOST_S, SETTLED_S = 10.0, 20.0, 30.0


class GoesOn:
    async def run(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("outlasts", "is_trained", "is_needed"),
    [
        ("evaluation", True, False),
        ("checkpoint", True, False),
        ("checkpoint", False, False),
        ("evaluation", True, True),
    ],
)
def test_one_that_cannot_come_back_ends_a_run_unless_all_is_trained(
    outlasts: str, is_trained: bool, is_needed: bool
) -> None:
    """`is_needed`: by the evaluation, as a reward model is."""

    async def main(runtime: VirtualRuntime) -> None:
        of: Any = SimpleNamespace
        flow, evaluated, tried = of(is_finished=False), list[float](), list[float]()

        class Acts:
            has_stepped = False

            async def run(self) -> None:
                await runtime.clock.sleep(TRAINED_S)
                flow.is_finished = is_trained
                if outlasts == "checkpoint":
                    await runtime.clock.sleep(SETTLED_S - TRAINED_S)

        class Evaluates:
            async def run(self) -> None:
                await runtime.clock.sleep(SETTLED_S)
                evaluated.append(runtime.clock.now())

        class Returns:
            async def run(self) -> None:
                await runtime.clock.sleep(LOST_S)
                tried.append(runtime.clock.now())
                raise WorkerLost(0, "exit code 3; that was so 8 times in a row", worker="reference/0")

        actor: Any = Acts()
        parts = of(stop=lambda: None, actor=actor, models=of(groups=[]), flow=flow)
        others: dict[str, Any] = {"relays": None, "watch": None, "gap": None, "critic": None, "columns": ()}
        returns = (Returns(),)
        loop = Loop(
            rollout=GoesOn(),
            actor=actor,
            followers=GoesOn(),
            functions=GoesOn(),
            evaluator=Evaluates(),
            returns=returns if is_needed else (),
            scorer_returns=() if is_needed else returns,
            **others,
        )
        roles = RoleTasks(loop, parts, runtime, of())
        keepers, stopping = roles.keepers(), runtime.spawn(GoesOn().run(), "stop request")
        running = roles.run(stopping, [*keepers.values()])
        if not is_trained:
            with pytest.raises(WorkerLost, match="8 times in a row"):
                await running
        elif is_needed:
            assert isinstance(await running, WorkerLost)
        else:
            assert await running is None
            assert evaluated == [SETTLED_S]
            assert tried == ([LOST_S] if outlasts == "checkpoint" else []), "it is brought back no more"
        for task in keepers.values():
            task.cancel()

    run_virtually(main)
