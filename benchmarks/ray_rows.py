"""Rows between actors of one Ray: through the experience table, and through TransferQueue.

    python -m benchmarks.ray_rows [--peer PYTHON] [--rounds 5] [--cycles 200]

A cycle is a call of each of three actors: 64 rows of 4 kB are put by one, another reads them and fills a column of one
number each, and a third takes all of it, after which the rows are gone. All three work at the same time, each on the
next cycle as soon as its own rows are there. `rows_per_s`: of so many cycles. `wake_up_ms`: with 20 ms between two
cycles, from when rows were put to when the waiting second actor has them; TransferQueue is asked once a millisecond for
that, and `loader_wake_up_ms` is as its own `StreamingDataset` asks, once a second.

This side goes two ways: near, by sockets and mapped memory of one host, where Ray has only begun the actors; and far,
by Ray's calls and its object store, as between machines that do not see each other's memory. Here all are on one.

PYTHON: an interpreter that has `TransferQueue==0.1.11`, `ray[default]==2.60.0` and torch. Sides in turn, each in a Ray
of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.machine import save, spread
from benchmarks.row_workers import RowSpec, RowWorker
from headrace.controller.building.ray_head import RayHead
from headrace.experience.header import SampleHeader
from headrace.experience.leases import Consumer, Lease
from headrace.experience.sample import GroupKey, SampleStatus
from headrace.experience.samplers import whole_groups
from headrace.experience.table import ExperienceTable
from headrace.runtime.inline import InlineRuntime, SystemClock
from headrace.runtime.ray.environment import prepare
from headrace.runtime.workers import Placement, Workers

ROWS, NUMBERS, PAUSE_S, WARM_UP = 64, 1024, 0.02, 20
_MAKES, _FILLS, _TAKES = range(3)
WAYS = ("near", "far")


class Cycles:
    """Of one table and its workers."""

    def __init__(self, runtime: InlineRuntime, workers: Workers[Any]) -> None:
        self._runtime = runtime
        self._workers = workers
        consumers = [Consumer("fill", frozenset({"x"}), "group"), Consumer("take", frozenset({"x", "y"}), "group")]
        self._table = ExperienceTable(consumers, capacity=8, lease_s=100.0, clock=SystemClock(), refs=runtime.refs)
        self._place = asyncio.Semaphore(4)
        self.waits: list[float] = []
        """Seconds from a put to the rows' being read."""
        self._put: dict[GroupKey, float] = {}

    async def run(self, cycles: int, pause_s: float = 0.0) -> float:
        """Seconds."""
        began = self._runtime.clock.now()
        await asyncio.gather(self._makes(cycles, pause_s), self._fills(cycles), self._takes(cycles))
        return self._runtime.clock.now() - began

    async def _makes(self, cycles: int, pause_s: float) -> None:
        for number in range(cycles):
            await self._place.acquire()
            key = GroupKey(0, number, 0)
            self._table.reserve(key)
            ((refs, put),) = await self._workers.call("make", ROWS, rank=_MAKES, what="rows")
            self._put[key] = put
            headers = [SampleHeader(key, "", 0, index, NUMBERS, SampleStatus.COMPLETED) for index in range(ROWS)]
            self._table.put(key, [(header, {"x": ref}) for header, ref in zip(headers, refs, strict=True)])
            if pause_s:
                await asyncio.sleep(pause_s)

    async def _fills(self, cycles: int) -> None:
        for _ in range(cycles):
            lease = await self._leased("fill")
            xs = [row.columns["x"] for row in lease.rows]
            ((ys, came),) = await self._workers.call("fill", xs, rank=_FILLS, what="a column")
            self.waits.append(came - self._put.pop(lease.rows[0].header.key))
            self._table.fill(lease, "y", {row.row_id: y for row, y in zip(lease.rows, ys, strict=True)})
            self._table.ack(lease)

    async def _takes(self, cycles: int) -> None:
        for _ in range(cycles):
            lease = await self._leased("take")
            xs, ys = ([row.columns[name] for row in lease.rows] for name in ("x", "y"))
            await self._workers.call("take", xs, ys, rank=_TAKES, what="all")
            self._table.ack(lease)
            self._place.release()

    async def _leased(self, consumer: str) -> Lease:
        lease = await self._table.lease(consumer, whole_groups, seconds=60.0, what=lambda: "rows")
        assert lease is not None
        return lease


async def own(cycles: int, log: Path, *, near: bool) -> dict[str, float]:
    prepare(None)
    from headrace.runtime.ray.cluster import RayCluster

    cluster = RayCluster("a benchmark", head=RayHead(2, log), packages=["benchmarks"], near=near)
    runtime = InlineRuntime(apart=cluster, copying=False)
    try:
        workers = await runtime.start(RowWorker, [RowSpec(NUMBERS)] * 3, Placement(process=True, threads=1))
        await Cycles(runtime, workers).run(WARM_UP)
        seconds = await Cycles(runtime, workers).run(cycles)
        paced = Cycles(runtime, workers)
        await paced.run(cycles, PAUSE_S)
        return {"rows_per_s": ROWS * cycles / seconds, "wake_up_ms": 1e3 * statistics.median(paced.waits)}
    finally:
        await runtime.close()


def measured(command: list[str]) -> dict[str, float]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def ratios(own: list[dict[str, float]], theirs: list[dict[str, float]]) -> dict[str, Any]:
    """Round by round, such that more is better for this side."""
    pairs = list(zip(own, theirs, strict=True))
    return {
        "rows_per_s": spread([ours["rows_per_s"] / peer["rows_per_s"] for ours, peer in pairs]),
        "wake_up": spread([peer["wake_up_ms"] / ours["wake_up_ms"] for ours, peer in pairs]),
        "loader_wake_up": spread([peer["loader_wake_up_ms"] / ours["wake_up_ms"] for ours, peer in pairs]),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--own", choices=WAYS, help="this side alone, once")
    args = parser.parse_args()
    if args.own:
        print(json.dumps(asyncio.run(own(args.cycles, Path("/dev/null"), near=args.own == "near"))))
        return
    this = [sys.executable, "-m", "benchmarks.ray_rows", "--cycles", str(args.cycles), "--own"]
    sides = {f"headrace, {way}": [*this, way] for way in WAYS}
    if args.peer:
        script = Path(__file__).parent / "peers" / "transfer_queue_rows.py"
        sides["TransferQueue"] = [args.peer, str(script), str(args.cycles)]
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(args.rounds):
        for side, command in sides.items():
            found[side].append(measured(command))
            print(side, found[side][-1], flush=True)
    result: dict[str, Any] = {
        side: {name: spread([one[name] for one in rounds]) for name in rounds[0]} for side, rounds in found.items()
    }
    if args.peer:
        result["ratios"] = {way: ratios(found[f"headrace, {way}"], found["TransferQueue"]) for way in WAYS}
    print(json.dumps(result, indent=1))
    save("ray_rows", {"rows": ROWS, "bytes": 4 * NUMBERS, "cycles": args.cycles, "rounds": args.rounds, **result})


if __name__ == "__main__":
    main()
