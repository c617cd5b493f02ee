"""What the sandbox costs a reward: processor time of a call, and the time of a batch, against the function trusted.

    python -m benchmarks.sandboxed_rewards [--rounds 7]

Processor time is that of this process and all that it started, exited children included, for a function that does
nothing: what sandboxed calls take beyond trusted ones. Batches are 64 samples asked for together: of a function that
computes for 40 ms (more than a second on two processors), and of one that does nothing (tiny), alone and in a file that
imports torch. Both sides run in turns in one call, and ratios are medians over rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.machine import save, spread
from headrace.config.reward import RewardConfig
from headrace.rewards.reward_pool import RewardPool
from headrace.runtime.inline import SystemClock

SAMPLES, CALLS = 64, 400
FUNCTIONS = """
import time

def nothing(response, row):
    return 1.0

def computes(response, row):
    end = time.thread_time() + 0.04
    while time.thread_time() < end:
        pass
    return 1.0
"""


def cpu_s() -> float:
    """Of this process and of all below it; what their children that have ended took is in their parents' account."""
    total = sum(os.times()[:2])
    for process in psutil.Process().children(recursive=True):
        times = process.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total


async def opened(function: str, trusted: bool) -> RewardPool:
    pool = RewardPool(RewardConfig(function=function, trusted=trusted, workers=2), clock=SystemClock())
    await pool.start()
    return pool


async def batch_s(pool: RewardPool, count: int) -> float:
    began = time.perf_counter()
    outcomes = await asyncio.gather(*(pool.score("7", {"answer": "7"}, "3+4=") for _ in range(count)))
    seconds = time.perf_counter() - began
    assert all(outcome.value == 1.0 for outcome in outcomes), outcomes[0]
    return seconds


async def measure(folder: Path, rounds: int) -> dict[str, Any]:
    file = folder / "functions.py"
    file.write_text(FUNCTIONS)
    found: dict[str, Any] = {}
    sides = {"nothing": (f"{file}:nothing", CALLS), "computes": (f"{file}:computes", SAMPLES)}
    for name, (function, count) in {**sides, "torch": ("benchmarks.heavy_reward:reward", CALLS)}.items():
        pools = {trusted: await opened(function, trusted) for trusted in (True, False)}
        cpu: dict[bool, list[float]] = {True: [], False: []}
        wall: dict[bool, list[float]] = {True: [], False: []}
        for pool in pools.values():
            await batch_s(pool, SAMPLES)  # warm
        for number in range(rounds):
            for trusted in (True, False) if number % 2 else (False, True):
                before = cpu_s()
                seconds = await batch_s(pools[trusted], count)
                cpu[trusted].append((cpu_s() - before) / count)
                wall[trusted].append(seconds * SAMPLES / count)
        for pool in pools.values():
            await pool.close()
        beyond = [one - other for one, other in zip(cpu[False], cpu[True], strict=True)]
        ratios = [one / other for one, other in zip(wall[False], wall[True], strict=True)]
        found[name] = {
            "cpu_ms_beyond_trusted": spread([1e3 * value for value in beyond]),
            "batch_s_sandboxed": statistics.median(wall[False]),
            "batch_s_trusted": statistics.median(wall[True]),
            "batch_ratio": spread(ratios),
        }
        print(name, found[name], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)  # samples of root's are another user
        result = asyncio.run(measure(Path(name), args.rounds))
    save("sandboxed_rewards", {"samples": SAMPLES, "calls": CALLS, "rounds": args.rounds, **result})


if __name__ == "__main__":
    main()
