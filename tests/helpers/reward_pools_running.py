"""A pool of one function, in a sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil

from headrace.config.reward import RewardConfig, SandboxConfig
from headrace.rewards.reward_pool import RewardPool
from headrace.runtime.inline import SystemClock


@asynccontextmanager
async def running(
    function: str, tool: str, timeout_s: float = 20.0, workers: int = 1, **changes: Any
) -> AsyncIterator[RewardPool]:
    before = set(psutil.Process().children(recursive=True))
    limits = {"memory_mib": 512, "processes": 20, "disk_mib": 4, **changes}
    pool = RewardPool(
        RewardConfig(
            function=function,
            timeout_s=timeout_s,
            workers=workers,
            sandbox=SandboxConfig(tool=tool, **limits),  # type: ignore[arg-type]
        ),
        clock=SystemClock(),
    )
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()
        assert set(psutil.Process().children(recursive=True)) <= before, "a process was left behind"
