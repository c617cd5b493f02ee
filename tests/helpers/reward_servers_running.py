"""A pool of rewards, a server that judges, and a clock on which no pause takes any time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from headrace.config.reward import RewardConfig
from headrace.rewards.reward_pool import RewardPool
from headrace.runtime.inline import SystemClock


class NotedClock(SystemClock):
    """Sleeps not at all, and keeps how long it should have."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


@asynccontextmanager
async def opened(clock: SystemClock | None = None, **config: Any) -> AsyncIterator[RewardPool]:
    pool = RewardPool(RewardConfig.model_validate({"timeout_s": 20.0, **config}), clock=clock or SystemClock())
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/judge", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/judge"
    finally:
        await runner.cleanup()
