"""A simulated cluster, under which whoever knows where columns are ends at times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NoReturn

from headrace.runtime.ground import ColumnsLost
from headrace.runtime.virtual import VirtualRuntime

_TOLD_S = 1.0
"""From a loss until it is known."""


class SimulatedGround:
    """A `Ground` that lasts."""

    def __init__(self, runtime: VirtualRuntime, losses: Sequence[float], took: Callable[[], None]) -> None:
        """`losses`: seconds of the clock at which all columns are lost; those that are over have been. `took` is told
        of each."""
        self._runtime = runtime
        self._losses = losses
        self._took = took
        self._lost = asyncio.Event()

    def begin(self) -> None:
        """From now on they are lost."""
        for at in self._losses:
            if at > self._runtime.clock.now():
                self._runtime.spawn(self._lose_at(at), "loss of all columns")

    async def ended(self) -> NoReturn:
        """See `Ground.ended`."""
        while True:
            await asyncio.Event().wait()

    async def columns_lost(self) -> NoReturn:
        """See `Ground.columns_lost`."""
        await self._lost.wait()
        self._lost.clear()
        raise ColumnsLost("whoever knew where columns are has ended (a fault of the simulation)")

    async def _lose_at(self, at: float) -> None:
        clock = self._runtime.clock
        await clock.sleep(at - clock.now())
        self._runtime.lose_columns()
        self._took()
        await clock.sleep(_TOLD_S)
        self._lost.set()
