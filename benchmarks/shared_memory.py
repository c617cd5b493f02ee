"""Weights by the transport `shm` into another process's resident parameters, against one memcpy of as many bytes.

500 MB in 60 tensors, copied by one thread on each side. Pages are warm on both sides; there is no checksum. The journey
is from the begin of `publish` to the end of `receive_into` in the other process, the call that tells it included.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import ClassVar

import torch

from benchmarks.machine import save, spread
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.process.processes import Processes
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Host, Placement
from headrace.weights.shm import ShmPublisher, ShmReceiver
from headrace.weights.version import Version

TENSORS, TENSOR_BYTES, RUNS = 60, 8 << 20, 9
WARM_UPS = 2
"""As many as there are slots."""


def parameters(value: float) -> dict[str, torch.Tensor]:
    return {f"layer {number}": torch.full((TENSOR_BYTES // 4,), value) for number in range(TENSORS)}


class Receiver:
    kind: ClassVar[str] = "receiver"
    types: ClassVar[WireTypes] = WireTypes()

    def __init__(self, address: str, host: Host) -> None:
        self._receiver = ShmReceiver(address)
        self._resident = parameters(0.0)

    def take(self) -> int:
        """Number of the version that is in the resident parameters now."""
        return self._receiver.receive_into(self._resident).version.number

    def is_whole(self, value: float) -> bool:
        return all(bool((tensor == value).all()) for tensor in self._resident.values())


def publish(publisher: ShmPublisher, number: int, tensors: dict[str, torch.Tensor]) -> None:
    torch.set_num_threads(1)  # of this thread
    publisher.publish(Version(0, number), tensors.items())


async def measure(folder: Path) -> dict[str, object]:
    torch.set_num_threads(1)
    runtime = InlineRuntime(apart=Processes("benchmark", packages=["benchmarks"]))
    try:
        publisher = ShmPublisher(folder)
        receivers = await runtime.start(Receiver, [publisher.address], Placement(process=True, threads=1))
        own, copy = parameters(0.0), parameters(0.0)
        memcpy_s, journey_s = [], []
        for run in range(WARM_UPS + RUNS):
            for tensor in own.values():
                tensor.fill_(run)
            began = time.perf_counter()
            for name, tensor in own.items():
                copy[name].copy_(tensor)
            once = time.perf_counter() - began
            began = time.perf_counter()
            await runtime.compute("publisher", publish, publisher, run, own)
            taken = await receivers.call("take", what="the weights")
            journey = time.perf_counter() - began
            assert taken == [run]
            assert await receivers.call("is_whole", float(run), what="a look") == [True]
            if run >= WARM_UPS:
                memcpy_s.append(once)
                journey_s.append(journey)
    finally:
        await runtime.close()
    return {
        "load": os.getloadavg()[0],
        "megabytes": TENSORS * TENSOR_BYTES / 1e6,
        "memcpy_s": spread(memcpy_s),
        "journey_s": spread(journey_s),
        "memcpy_over_journey": spread([one / other for one, other in zip(memcpy_s, journey_s, strict=True)]),
    }


def main() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        result = asyncio.run(measure(Path(folder)))
    print(result)
    save("shared_memory", result)


if __name__ == "__main__":
    from benchmarks.shared_memory import main as by_name  # a process finds no class of __main__

    by_name()
