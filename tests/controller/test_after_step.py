"""What follows a batch's step, in its order."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from headrace.controller.building.step_ends import recorded_step


def test_a_batch_is_settled_once_it_is_recorded_and_before_anybody_waits() -> None:
    """A rank that dies while an engine's turn is waited for, or an evaluation, costs nothing that is trained."""
    done: list[str] = []

    def says(what: str) -> Any:
        return lambda *given: done.append(what)

    def waits(what: str) -> Any:
        async def wait(*given: Any) -> None:
            done.append(what)

        return wait

    of: Any = SimpleNamespace
    after_step = recorded_step(
        of(batch=says("recorded")),
        of(trained=waits("samples")),
        of(look_at=says("looked at")),
        of(after=waits("committed")),
        of(begun=waits("evaluated")),
        of(branch=0),
        [of(settled=says("settled"))],
        of(generate=waits("the engine's turn")),
    )
    asyncio.run(after_step(of(batch=3)))
    assert done == ["samples", "recorded", "looked at", "committed", "settled", "the engine's turn", "evaluated"]
