"""A loss while the run goes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.controller.going_back import GoingBack
from headrace.runtime.workers import WorkerLost


class Reached(Exception):
    """What the test is about has come."""


def test_one_that_is_lost_as_the_commit_is_loaded_is_not_healed_but_loads_it_again() -> None:
    """The others may have the commit's state by then, of which the flow knows nothing: healed, the run would go on from
    the version that it left with weights of the one before."""
    asked, loaded, renewed = list[str](), list[Path | None](), list[str]()

    async def nothing(*given: object) -> None: ...

    async def now(*given: object) -> None:
        return None

    async def renew() -> None:
        renewed.append("trainer")

    async def load(path: Path | None) -> None:
        loaded.append(path)
        if len(loaded) == 1:
            raise WorkerLost(1, "it ended", worker="trainer/1")
        raise Reached

    class Healing:
        def forget(self) -> None: ...

        async def after(self, kind: str, told: object) -> bool:
            asked.append(kind)
            return len(asked) > 1  # the second time all are as the commit is

    of: Any = SimpleNamespace

    def says(*given: object) -> None: ...

    commit = of(path=Path("step_2"), number=2, verify=says)
    parts = of(
        checkpointer=of(committed=2, forget=nothing),
        flow=of(batch=5),
        branch=0,
        turns=of(train=nothing),
        recorder=of(event=says),
        actor=of(forget_step=says),
        models=of(renew={"trainer": renew}, refreshed=None, critic=None),
    )
    plan = of(replay=None, config=of(reference=of(refresh_every=None), runtime=of(restarts=of(most=9, window_s=600.0))))
    store = of(checkpoints=of(newest=lambda: commit), files=None)
    runtime = of(clock=of(now=lambda: 0.0, sleep=nothing), compute=now)

    async def main() -> None:
        back = GoingBack(plan, parts, store, runtime, load)
        back._healing = Healing()  # type: ignore[assignment]
        going: Awaitable[None] = back.after(WorkerLost(0, "it ended", worker="trainer/0"))
        with pytest.raises(Reached):
            await going

    asyncio.run(main())
    assert asked == ["trainer"]
    assert (loaded, renewed) == ([Path("step_2")] * 2, ["trainer"] * 2)
