"""What the tests of the sandbox share: programs that are scored by real processes."""

from __future__ import annotations

import asyncio
from typing import Any

import psutil

from headrace.config.reward import RewardConfig, SandboxConfig
from headrace.rewards.outcome import RewardOutcome
from headrace.rewards.reward_pool import RewardPool
from headrace.runtime.inline import SystemClock


def score(
    *programs: str, tests: Any, tool: str = "none", timeout_s: float = 20.0, memory_mib: int = 512, **changes: Any
) -> list[RewardOutcome]:
    """The rewards of programs, one after another; nothing of them is left."""

    async def play() -> list[RewardOutcome]:
        sandbox = SandboxConfig(tool=tool, memory_mib=memory_mib, processes=20, disk_mib=4)  # type: ignore[arg-type]
        config = RewardConfig(function="code", timeout_s=timeout_s, sandbox=sandbox, **changes)
        before = set(psutil.Process().children(recursive=True))
        pool = RewardPool(config, clock=SystemClock())
        await pool.start()
        try:
            return [await pool.score(program, {"answer": tests}, "") for program in programs]
        finally:
            await pool.close()
            assert set(psutil.Process().children(recursive=True)) <= before, "a process was left behind"

    return asyncio.run(play())
