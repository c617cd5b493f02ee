"""The experience table: rows through put, lease and ack in one process, and how soon a waiter wakes."""

from __future__ import annotations

import asyncio
import statistics
import time

import numpy as np

from benchmarks.machine import save, spread
from headrace.experience.header import SampleHeader
from headrace.experience.leases import Consumer
from headrace.experience.sample import GroupKey, SampleStatus
from headrace.experience.samplers import token_budget, whole_groups
from headrace.experience.table import ExperienceTable
from headrace.runtime.inline import SystemClock

GROUPS, GROUP_SIZE, RUNS, WAKES = 2_000, 8, 5, 500
COLUMNS = frozenset({"tokens", "reward"})


def row() -> dict[str, object]:
    """About 1 kB: 64 tokens with mask, log-probs, versions and branches."""
    return {
        "tokens": np.zeros(64, np.int32),
        "loss_mask": np.zeros(64, np.bool_),
        "logprobs": np.zeros(64, np.float32),
        "versions": np.zeros(64, np.int32),
        "branches": np.zeros(64, np.int32),
        "reward": 1.0,
    }


def header(key: GroupKey) -> SampleHeader:
    return SampleHeader(key, "", 0, 0, 64, SampleStatus.COMPLETED)


def rows_per_second() -> float:
    """Each row is put, leased, and acked once."""
    table = ExperienceTable([Consumer("actor", COLUMNS)], capacity=GROUPS, lease_s=100.0, clock=SystemClock())
    sampler = token_budget(4096, lambda item: item.header.length)
    groups = [[row() for _ in range(GROUP_SIZE)] for _ in range(GROUPS)]
    began = time.perf_counter()
    for position, rows in enumerate(groups):
        key = GroupKey(0, position, 0)
        table.reserve(key)
        table.put(key, [(header(key), columns) for columns in rows])
        if position % 8 == 7:
            while (lease := table.try_lease("actor", sampler)) is not None:
                table.ack(lease)
    seconds = time.perf_counter() - began
    assert table.rows == 0
    return GROUPS * GROUP_SIZE / seconds


async def wake_up_s() -> list[float]:
    """From the put of a group to its waiting consumer holding the lease."""
    table = ExperienceTable([Consumer("filter", COLUMNS, "group")], capacity=8, lease_s=100.0, clock=SystemClock())
    times = []
    for position in range(WAKES):
        waiting = asyncio.create_task(table.lease("filter", whole_groups, seconds=10, what=lambda: "a group"))
        await asyncio.sleep(0)
        key = GroupKey(0, position, 0)
        table.reserve(key)
        rows = [row()]
        began = time.perf_counter()
        table.put(key, [(header(key), columns) for columns in rows])
        lease = await waiting
        times.append(time.perf_counter() - began)
        assert lease is not None
        table.ack(lease)
    return times


def main() -> None:
    rates = [rows_per_second() for _ in range(RUNS)]
    wakes = [asyncio.run(wake_up_s()) for _ in range(RUNS)]
    result = {
        "rows_per_s": spread(rates),
        "wake_up_p50_ms": spread([1e3 * statistics.median(times) for times in wakes]),
        "wake_up_p99_ms": spread([1e3 * sorted(times)[int(0.99 * len(times))] for times in wakes]),
    }
    print(result)
    save("table", result)


if __name__ == "__main__":
    main()
