"""Eight clients ask three worker processes everything that can be asked, while a killer kills them and a healer makes
them anew: each call ends in time with its answer or with the loss, and nothing piles up."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import signal
import time
from collections import Counter
from contextlib import aclosing

import numpy as np
import pytest
from runtime_worker_kinds import Probe, Spec

from headrace.runtime.inline import InlineRuntime
from headrace.runtime.process.processes import Processes
from headrace.runtime.refs import RefLost
from headrace.runtime.workers import Placement, WorkerError, WorkerLost, Workers

WORKERS, CLIENTS = 3, 8
LEAST_S, MOST_S = 10.0, 150.0
IN_TIME_S = 19.0
"""Below the deadline of a call."""
RESTARTS = 10
OFTEN = {
    (way, came): times
    for way in ("one", "all", "stream", "ref", "other", "big", "relayed")
    for came, times in (("answer", 51), ("WorkerLost", 11))
}
"""How often a way is to end so, at least."""


class Soak:
    def __init__(self, runtime: InlineRuntime, workers: Workers[Probe], seed: int) -> None:
        self.runtime = runtime
        self.workers = workers
        self.random = np.random.default_rng(seed)
        self.began = time.monotonic()
        self.seen: Counter[tuple[str, str]] = Counter()
        self.slowest_s = 0.0
        self.restarts = 0

    def goes_on(self) -> bool:
        enough = self.restarts >= RESTARTS and all(self.seen[each] >= times for each, times in OFTEN.items())
        return time.monotonic() - self.began < (LEAST_S if enough else MOST_S)

    def rank(self) -> int:
        return int(self.random.integers(WORKERS))

    async def run(self) -> None:
        await asyncio.gather(self.kill(), self.heal(), *(self.ask() for _ in range(CLIENTS)))
        for rank in list(self.workers.lost):
            await self.workers.restart(rank)

    async def ask(self) -> None:
        ways = (self.one, self.all, self.stream, self.ref, self.other, self.big, self.cancelled, self.relayed)
        while self.goes_on():
            way = ways[int(self.random.integers(len(ways)))]
            began, came = time.monotonic(), "answer"
            try:
                await way()
            except WorkerError as error:
                if error.type not in ("WorkerLost", "RefLost"):  # of a worker that asked another
                    raise
                came = error.type
            except (WorkerLost, RefLost) as error:
                came = type(error).__name__
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            self.seen[way.__name__, came] += 1

    async def one(self) -> None:
        rank = self.rank()
        assert await self.workers.call("word", rank=rank, what="a word") == [f"{rank} of probe/{rank}"]

    async def all(self) -> None:
        assert await self.workers.call("sleep", 0.01, what="sleep") == ["slept"] * WORKERS

    async def stream(self) -> None:
        method, count = ("count", "count_blocking")[self.rank() % 2], self.rank() * 50
        seen = []
        async with aclosing(self.workers.stream(method, count, rank=self.rank(), what="numbers")) as numbers:
            async for number in numbers:
                seen.append(number)
                if number == 70:
                    return
        assert seen == list(range(count))

    async def ref(self) -> None:
        (ref,) = await self.workers.call("keep", (10, 50_000)[self.rank() % 2], rank=self.rank(), what="a ref")
        try:
            await self.workers.call("read", ref, rank=self.rank(), what="a sum")
            assert (await self.runtime.get(ref))["numbers"][3] == 3.0
        finally:
            self.runtime.free(ref)

    async def other(self) -> None:
        rank, other = self.rank(), self.workers.handles[self.rank()]
        (word,) = await self.workers.call("ask", other, "word", rank=rank, what="a question")
        assert word.endswith(other.worker)

    async def big(self) -> None:
        array = self.random.standard_normal(100_000)
        (back,) = await self.workers.call("same", array, rank=self.rank(), what="an array")
        assert np.array_equal(back, array)

    async def cancelled(self) -> None:
        call = asyncio.ensure_future(self.workers.call("sleep", 1.0, rank=self.rank(), what="sleep"))
        await asyncio.sleep(self.random.random() * 0.02)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call

    async def relayed(self) -> None:
        other = self.workers.handles[self.rank()]
        numbers = self.workers.stream("relay", other, 30, rank=self.rank(), what="numbers")
        assert [number async for number in numbers] == list(range(30))

    async def kill(self) -> None:
        """Every other time they have been whole for a while, however long it takes to make one anew."""
        for number in itertools.count():
            whole_by = time.monotonic() + 10.0
            while number % 2 and self.workers.lost and time.monotonic() < whole_by:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await asyncio.sleep(self.random.random() * 0.8)
            if not self.goes_on():
                return
            with contextlib.suppress(WorkerLost):
                (pid,) = await self.workers.call("pid", rank=self.rank(), what="a pid")
                os.kill(pid, signal.SIGKILL)

    async def heal(self) -> None:
        while self.goes_on():
            for rank in list(self.workers.lost):
                await self.workers.restart(rank)
                self.restarts += 1
            await asyncio.sleep(0.02)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_whatever_is_killed_every_call_ends_and_nothing_piles_up(seed: int) -> None:
    async def main() -> None:
        processes = Processes("a soak", packages=["runtime_worker_kinds"])
        runtime = InlineRuntime(apart=processes, copying=False)
        try:
            specs = [Spec(str(rank)) for rank in range(WORKERS)]
            workers = await runtime.start(Probe, specs, Placement(process=True, deadline_s=20, start_s=20))
            soak, files = Soak(runtime, workers, seed), open_files()
            await soak.run()
            assert soak.slowest_s < IN_TIME_S
            assert soak.restarts >= RESTARTS
            assert not {each for each, times in OFTEN.items() if soak.seen[each] < times}, soak.seen
            await asyncio.sleep(0.5)
            assert len(asyncio.all_tasks()) < 30
            gc.collect()
            assert open_files() < files + 20, "its connections are those of three workers"
            left = [path for path in processes.folder.rglob("*") if path.is_file()]
            assert len(left) < 20, "but for refs whose reader was killed"
            folder = processes.folder
        finally:
            await runtime.close()
        assert not folder.exists()

    asyncio.run(main())
