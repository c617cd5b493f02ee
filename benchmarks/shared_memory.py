"""Weights through shared memory into another process's resident parameters, against one memcpy of as many bytes.

500 MB in buckets. Publisher and receiver map the same file, whose pages are warm, as are the parameters. A header of
two numbers tells the generation and how many of its buckets are whole; it is written last, and nothing is checksummed.
Receiver copies a bucket as soon as it is whole, so that both sides copy at once where there are two processors.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import save, spread
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.process.processes import Processes
from headrace.runtime.wire_types import WireTypes
from headrace.runtime.workers import Host, Placement

BUCKETS, BUCKET_BYTES, RUNS = 60, 8 << 20, 9
HEADER_BYTES = 4096
_PAUSE_S = 20e-6


@dataclass(frozen=True, slots=True)
class ArenaSpec:
    path: str


class Arena:
    """A generation and the count of its whole buckets; then the buckets."""

    def __init__(self, path: str) -> None:
        size = HEADER_BYTES + BUCKETS * BUCKET_BYTES
        with open(path, "r+b") as file:
            if os.fstat(file.fileno()).st_size < size:
                file.truncate(size)
            whole = mmap.mmap(file.fileno(), size)
        self.header = np.frombuffer(whole, np.int64, 2)
        self.buckets = np.frombuffer(whole, np.uint8, offset=HEADER_BYTES).reshape(BUCKETS, BUCKET_BYTES)


class Receiver:
    kind: ClassVar[str] = "receiver"
    types: ClassVar[WireTypes] = WireTypes({"arena": ArenaSpec})

    def __init__(self, spec: ArenaSpec, host: Host) -> None:
        self._arena = Arena(spec.path)
        self._parameters = np.zeros_like(self._arena.buckets)

    def take(self, generation: int) -> float:
        """Until the generation is in the parameters. When it was, in seconds of the machine's monotonic clock."""
        header = self._arena.header
        for place in range(BUCKETS):
            while header[0] != generation or header[1] <= place:
                time.sleep(_PAUSE_S)
            np.copyto(self._parameters[place], self._arena.buckets[place])
        return time.monotonic()

    def is_whole(self, value: int) -> bool:
        return bool((self._parameters == value).all())


def publish(arena: Arena, parameters: NDArray[np.uint8], generation: int) -> None:
    arena.header[1] = 0
    arena.header[0] = generation
    for place in range(BUCKETS):
        np.copyto(arena.buckets[place], parameters[place])
        arena.header[1] = place + 1


async def main() -> None:
    processes = Processes("benchmark", packages=["benchmarks"])
    runtime = InlineRuntime(processes=processes)
    path = Path("/dev/shm") / f"headrace-benchmark-{os.getpid()}"
    path.touch(mode=0o600)
    try:
        receivers = await runtime.start(Receiver, [ArenaSpec(str(path))], Placement(process=True))
        arena = Arena(str(path))
        parameters, copy = np.zeros_like(arena.buckets), np.zeros_like(arena.buckets)
        memcpy_s, journey_s = [], []
        for run in range(RUNS + 1):
            parameters[:] = run + 1
            began = time.monotonic()
            np.copyto(copy, parameters)
            once = time.monotonic() - began
            taking = asyncio.ensure_future(receivers.call("take", run + 1, what="the weights"))
            await asyncio.sleep(0.05)
            began = time.monotonic()
            await runtime.compute("publisher", publish, arena, parameters, run + 1)
            (ended,) = await taking
            assert await receivers.call("is_whole", run + 1, what="a look") == [True]
            if run:  # pages are warm
                memcpy_s.append(once)
                journey_s.append(ended - began)
    finally:
        path.unlink()
        await runtime.close()
    ratios = [one / other for one, other in zip(memcpy_s, journey_s, strict=True)]
    result = {
        "load": os.getloadavg()[0],
        "megabytes": BUCKETS * BUCKET_BYTES / 1e6,
        "memcpy_s": spread(memcpy_s),
        "journey_s": spread(journey_s),
        "memcpy_over_journey": spread(ratios),
    }
    print(result)
    save("shared_memory", result)


if __name__ == "__main__":
    from benchmarks.shared_memory import main as by_name  # a process finds no class of __main__

    asyncio.run(by_name())
