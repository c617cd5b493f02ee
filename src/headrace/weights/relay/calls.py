"""What relays are asked by the controller: one of them, or several that wait for each other."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.runtime.workers import WorkerError, WorkerLost, Workers
from headrace.weights.relay.faults import Fault
from headrace.weights.relay.line import STILL_S

_LAST_WORDS_S = STILL_S + 5.0
"""In which all of a journey that failed have to have said so: a peer's end is known at once, its silence later."""
_SHORT_S = 60.0
"""Of calls that wait for nobody else, or for a group to come together."""


class RelayCalls:
    def __init__(self, workers: Workers[Any], clock: Clock, seconds: float) -> None:
        """`workers`: the first is the source's. `seconds`: that a journey may take."""
        self._workers = workers
        self._clock = clock
        self._seconds = seconds

    async def one(self, rank: int, method: str, *args: Any, what: str) -> Any:
        """Raises WorkerError, WorkerLost, WaitTimeout."""
        seconds = self._seconds if method in ("send", "take") else _SHORT_S
        return (await self._workers.call(method, *args, rank=rank, what=what, seconds=seconds))[0]

    async def each(self, asked: Mapping[int, tuple[str, tuple[Any, ...]]]) -> tuple[dict[int, Any], dict[int, Fault]]:
        """What each answers, and what failed. Once one has failed the others have to answer soon: who does not is
        ended."""
        calls = {
            rank: asyncio.create_task(self.one(rank, method, *args, what=f"weights on their way ({method})"))
            for rank, (method, args) in asked.items()
        }
        try:
            await asyncio.wait([*calls.values()], return_when=asyncio.FIRST_EXCEPTION)
            left = [task for task in calls.values() if not task.done()]
            if left:
                try:
                    await self._clock.wait_for(asyncio.wait(left), _LAST_WORDS_S, "relays of a journey that failed")
                except WaitTimeout as late:
                    for rank, task in calls.items():
                        if not task.done():
                            await self._workers.kill(rank, f"it does not answer: {late}")
        finally:
            for task in calls.values():
                task.cancel()
            await asyncio.gather(*calls.values(), return_exceptions=True)
        answers: dict[int, Any] = {}
        faults: dict[int, Fault] = {}
        for rank, task in calls.items():
            error = WorkerLost(rank, "it did not answer") if task.cancelled() else task.exception()
            if error is None:
                answers[rank] = task.result()
            elif isinstance(error, WorkerError | WorkerLost | WaitTimeout):
                faults[rank] = error
            else:
                raise error
        return answers, faults
