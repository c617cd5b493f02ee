"""The weight followers of a pool: one for each engine, also for those that come while the run goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from headrace.engines.member import Member
from headrace.engines.pool import EnginePool
from headrace.roles.weight_follower import WeightFollowerRole
from headrace.runtime.protocol import Services, WaitTimeout


class WeightFollowersRole:
    def __init__(
        self, pool: EnginePool, services: Services, follower: Callable[[Member], WeightFollowerRole], patience_s: float
    ) -> None:
        """`patience_s`: of one wait for an engine that comes."""
        self._pool = pool
        self._services = services
        self._follower = follower
        self._patience_s = patience_s

    async def run(self) -> None:
        """Until cancelled, as the run ends. The first follower that fails ends them all, and its error is raised."""
        tasks: list[asyncio.Task[Any]] = []
        spawn = self._services.spawn
        try:
            while True:
                new = self._pool.members[len(tasks) :]
                tasks += [spawn(self._follower(each).run(), f"weight follower {each.index}") for each in new]
                coming = spawn(self._another(len(tasks)), "an engine that comes")
                try:
                    await asyncio.wait([coming, *tasks], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    coming.cancel()
                for task in tasks:
                    if task.done():
                        task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _another(self, known: int) -> None:
        """Until the pool has more than so many."""
        pool = self._pool
        with suppress(WaitTimeout):
            await pool.changed.wait_until(
                lambda: len(pool.members) > known, self._services.clock, self._patience_s, lambda: "an engine"
            )
