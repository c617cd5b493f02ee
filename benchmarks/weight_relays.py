"""Weights over relays, on one machine: into another process's resident parameters, to 1, 2, 4 and 8 receivers, and to
four engines that serve.

- *resident*: 500 MB in 60 tensors, as `shared_memory` has them: from the begin of `publish` to the end of the copy into
  the other process's parameters, over a relay beside the trainer and one beside the receiver, by gloo on loopback.
  Against one memcpy of as many bytes. Whole, without checksums; pages are warm.
- *many*: 64 MB from `publish` until all of 1, 2, 4 and 8 relays have it. On one machine all of them share its
  processors, so that the time grows with the work: beside it stands what the source itself sends, which does not.
- *engines*: a model of 19 MB from `publish` until four embedded engines, each in a process of its own, hold the version
  and would serve with it; by shared memory, and over a relay beside each.

`python -m benchmarks.weight_relays [resident | many | engines]`: all of them unless given.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import save, spread
from benchmarks.policy_model import make_model
from benchmarks.shared_memory import Receiver, parameters, publish
from headrace.config.model import EngineConfig
from headrace.engines.protocol import SwapMode
from headrace.engines.remote import RemoteEngine
from headrace.models.loading import load_causal_lm
from headrace.roles.workers.engine import EngineSpec, EngineWorker
from headrace.roles.workers.relay import RelaySpec, RelayWorker
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.peer_of_rank import PeerOfRank
from headrace.runtime.process.processes import Processes
from headrace.runtime.together import together
from headrace.runtime.workers import Placement
from headrace.weights.plane import WeightReceiver
from headrace.weights.receiving import receiver_of
from headrace.weights.relay.relays import Relays
from headrace.weights.shm import ShmPublisher
from headrace.weights.version import Version

RUNS, WARM_UPS = 9, 2
RECEIVERS = (1, 2, 4, 8)
ENGINES = 4
APART = Placement(process=True, threads=1)


class House:
    def __init__(self, runtime: InlineRuntime, relays: Relays | None, publisher: ShmPublisher) -> None:
        self.runtime = runtime
        self.relays = relays
        self.publisher = publisher
        self.carried: list[dict[str, Any]] = []
        if relays is not None:
            relays.events.tell_to(self._told)

    def _told(self, kind: str, data: dict[str, Any]) -> None:
        if kind != "weights_carried":
            raise RuntimeError(f"{kind}: {data}")
        self.carried.append(data)

    async def publish(self, number: int, tensors: dict[str, torch.Tensor]) -> None:
        await self.runtime.compute("publisher", publish, self.publisher, number, tensors)
        if self.relays is not None:
            await self.relays.carry(self.publisher.address)

    def near(self, receiver: int) -> WeightReceiver:
        return self.publisher.receiver() if self.relays is None else receiver_of(self.relays.offer_at(1 + receiver))


@asynccontextmanager
async def house(receivers: int) -> AsyncGenerator[House]:
    """With so many relays beside the source's; with none by shared memory."""
    torch.set_num_threads(1)
    processes = Processes("benchmark", packages=["benchmarks", "headrace"])
    runtime = InlineRuntime(apart=processes)
    try:
        relays = None
        if receivers:
            spec = RelaySpec(str(processes.make_folder("relays")))
            workers = await runtime.start(RelayWorker, [spec] * (1 + receivers), APART)
            relays = Relays(workers, runtime.clock, 60.0, deltas=False)
            for rank in range(1 + receivers):
                await relays.take_in(rank, [])
        yield House(runtime, relays, ShmPublisher(processes.make_folder("weights")))
    finally:
        await runtime.close()


async def resident() -> dict[str, Any]:
    own, copy = parameters(0.0), parameters(0.0)
    memcpy_s, journey_s = [], []
    async with house(1) as the:
        receivers = None
        for run in range(WARM_UPS + RUNS):
            for tensor in own.values():
                tensor.fill_(run)
            began = time.perf_counter()
            for name, tensor in own.items():
                copy[name].copy_(tensor)
            once = time.perf_counter() - began
            if receivers is None:
                await the.publish(0, own)
                offer = the.near(0).offer()
                assert offer is not None
                receivers = await the.runtime.start(Receiver, [offer.address], APART)
                continue
            began = time.perf_counter()
            await the.publish(run, own)
            assert await receivers.call("take", what="the weights") == [run]
            journey = time.perf_counter() - began
            assert await receivers.call("is_whole", float(run), what="a look") == [True]
            if run >= WARM_UPS:
                memcpy_s.append(once)
                journey_s.append(journey)
    size = sum(tensor.nbytes for tensor in own.values())
    return {
        "megabytes": size / 1e6,
        "memcpy_s": spread(memcpy_s),
        "journey_s": spread(journey_s),
        "carried_s": spread([each["seconds"] for each in the.carried[WARM_UPS:]]),
        "memcpy_over_journey": spread([one / other for one, other in zip(memcpy_s, journey_s, strict=True)]),
    }


async def many() -> dict[str, Any]:
    tensors = {f"layer {number}": torch.zeros(2 << 20) for number in range(8)}
    found = {}
    for count in RECEIVERS:
        seconds = []
        async with house(count) as the:
            for run in range(WARM_UPS + RUNS):
                began = time.perf_counter()
                await the.publish(run, tensors)
                seconds.append(time.perf_counter() - began)
        last = the.carried[-1]
        assert len(last["relays"]) == count
        found[str(count)] = {"seconds": spread(seconds[WARM_UPS:]), "source_sends": last["share"] * last["bytes"]}
    return found


async def engines() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as made:
        make_model(Path(made), 0.1)
        model = load_causal_lm(made, dtype=torch.float32, device="cpu")
        tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
        found: dict[str, Any] = {"megabytes": sum(tensor.nbytes for tensor in tensors.values()) / 1e6}
        for way, relays in (("shm", 0), ("collective", ENGINES)):
            async with house(relays) as the:
                found[way] = spread(await _served(the, EngineSpec(made, "float32", "cpu", EngineConfig()), tensors))
    return found


async def _served(the: House, spec: EngineSpec, tensors: dict[str, torch.Tensor]) -> Sequence[float]:
    workers = await the.runtime.start(EngineWorker, [spec] * ENGINES, APART)
    asked = [RemoteEngine(PeerOfRank(workers, rank), the.runtime, "benchmark", rank=rank) for rank in range(ENGINES)]
    seconds = []
    for engine in asked:
        await engine.start()
    for run in range(WARM_UPS + RUNS):
        began = time.perf_counter()
        await the.publish(1 + run, tensors)
        await together(engine.update(the.near(rank), SwapMode.RECOMPUTE) for rank, engine in enumerate(asked))
        seconds.append(time.perf_counter() - began)
        assert {engine.version for engine in asked} == {Version(0, 1 + run)}
    for engine in asked:
        await engine.stop()
    return seconds[WARM_UPS:]


def main(names: Sequence[str]) -> None:
    known = {"resident": resident, "many": many, "engines": engines}
    result: dict[str, Any] = {"load": os.getloadavg()[0]}
    for name in names or known:
        result[name] = asyncio.run(known[name]())
        print(name, result[name], flush=True)
    save("weight_relays", result)


if __name__ == "__main__":
    from benchmarks.weight_relays import main as by_name  # a process finds no class of __main__

    by_name(sys.argv[1:])
