"""Relays in processes of their own: a version is there whole or not at all, whoever is killed at whichever bucket."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from device_relay import DeviceRelay
from mortal_relay import MortalRelay

from headrace.roles.workers.relay import RelaySpec, RelayWorker
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.process.processes import Processes
from headrace.runtime.workers import Placement, Workers
from headrace.weights.plane import WeightReceiver
from headrace.weights.receiving import receiver_of
from headrace.weights.relay import calls
from headrace.weights.relay.chain import BUCKET
from headrace.weights.relay.journey import SOURCE
from headrace.weights.relay.relays import Relays
from headrace.weights.shm import ShmPublisher
from headrace.weights.version import Version

pytestmark = [pytest.mark.slow, pytest.mark.cpu]

BUCKETS = 2
NUMBERS = BUCKETS * BUCKET // 4 // 3


def tensors(number: int) -> list[tuple[str, torch.Tensor]]:
    """Of the version of this number: 1,000 numbers differ from those of the one before, in each tensor."""
    found = []
    for name in ("a", "b", "c"):
        tensor = torch.zeros(NUMBERS)
        for each in range(1, number + 1):
            tensor[each * 1000 : (each + 1) * 1000] = each
        found.append((name, tensor))
    return found


class House:
    """A publisher in this process, and relays in others."""

    def __init__(self, workers: Workers[Any], relays: Relays, publisher: ShmPublisher) -> None:
        self.workers = workers
        self.relays = relays
        self.publisher = publisher
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.served: dict[int, Version] = {}
        relays.events.tell_to(lambda kind, data: self.events.append((kind, data)))

    def at(self, rank: int) -> WeightReceiver:
        return receiver_of(self.relays.offer_at(rank))

    async def publish(self, number: int) -> None:
        self.publisher.publish(Version(0, number), tensors(number))
        await self.relays.carry(self.publisher.address)

    def look(self, *ranks: int) -> list[int]:
        """The numbers of what whoever takes a version at these relays gets: whole, and never an older one than
        before."""
        for rank in ranks:
            received = self.at(rank).received()
            version = received.manifest.version
            for name, wanted in tensors(version.number):
                assert torch.equal(received.tensors[name], wanted), (rank, version, name)
            assert version >= self.served.get(rank, version)
            self.served[rank] = version
        return [self.served[rank].number for rank in ranks]

    def told(self, kind: str) -> list[dict[str, Any]]:
        found = [data for each, data in self.events if each == kind]
        self.events = [event for event in self.events if event[0] != kind]
        return found

    async def mended(self) -> None:
        while (due := self.relays.next_due()) is not None:
            await asyncio.sleep(due)
            await self.relays.mend()


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**given: Any) -> None:
        asyncio.run(test(**given))

    return run


@asynccontextmanager
async def house(
    folder: Path,
    count: int,
    *,
    deltas: bool = False,
    still_s: float = 10.0,
    kind: type[RelayWorker] = MortalRelay,
    device_of: Callable[[int], str] | None = None,
) -> AsyncGenerator[House]:
    processes = Processes("a test", packages=["mortal_relay", "device_relay"])
    runtime = InlineRuntime(apart=processes)
    try:
        spec = RelaySpec(str(processes.make_folder("relays")), still_s)
        workers = await runtime.start(kind, [spec] * (1 + count), Placement(process=True, threads=1))
        relays = Relays(workers, runtime.clock, 60.0, deltas=deltas, summed=True, device_of=device_of)
        for rank in range(1 + count):
            await relays.take_in(rank, [] if rank == SOURCE else [f"engine/{rank}"])
        yield House(workers, relays, ShmPublisher(folder))
    finally:
        await runtime.close()


@in_loop
async def test_killed_at_any_bucket_nobody_has_a_mixture_and_all_catch_up(tmp_path: Path) -> None:
    async with house(tmp_path, 2) as the:
        ranks = (1, 2)
        await the.publish(0)
        assert the.look(*ranks) == [0, 0]
        number = 0
        for victim in (SOURCE, *ranks):
            for bucket in range(BUCKETS + 1):
                number += 1
                await the.workers.call("die_at", bucket, rank=victim, what="a death to come")
                await the.publish(number)
                left_out = the.told("relay_left_out")
                assert [each["relay"] for each in left_out] == [victim]
                assert "is lost" in left_out[0]["message"]
                others = [rank for rank in ranks if rank != victim]
                expected = number - 1 if victim == SOURCE else number  # the next attempt goes without it
                assert the.look(*others) == [expected] * len(others)
                await the.mended()
                assert the.look(*ranks) == [number] * 2, "all catch up by themselves"
        await the.publish(number + 1)
        assert the.look(*ranks) == [number + 1] * 2
        assert the.told("weights_carried")[-1]["relays"] == [1, 2], "one group again"


@in_loop
async def test_what_changed_goes_to_those_that_have_the_version_before(tmp_path: Path) -> None:
    async with house(tmp_path, 2, deltas=True) as the:
        await the.publish(0)
        await the.publish(1)
        first, second = the.told("weights_carried")
        assert the.events == []
        assert (first["share"], first["relays"]) == (1.0, [1, 2])
        assert "base" not in first
        assert (second["base"], second["relays"]) == ("v0", [1, 2])
        assert second["share"] < 0.01
        assert the.look(1, 2) == [1, 1]
        # One of them is made anew, and has no version to compare with.
        await the.workers.kill(2, "for the test")
        await the.relays.mend()  # it sees that, and waits a while
        await the.mended()
        assert the.look(1, 2) == [1, 1]
        await the.workers.kill(2, "again")
        await the.publish(2)
        assert the.look(1) == [2]
        await the.mended()
        assert the.look(1, 2) == [2, 2]
        shares = [(each["relays"], each.get("base"), each["share"] == 1.0) for each in the.told("weights_carried")]
        assert shares == [([2], None, True), ([1], "v1", False), ([2], None, True)]


@in_loop
async def test_one_that_stands_still_is_ended_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_LAST_WORDS_S", 3.0)
    async with house(tmp_path, 3, still_s=2.0) as the:
        await the.publish(0)
        await the.workers.call("die_at", 1, int(signal.SIGSTOP), rank=2, what="a halt to come")
        await the.publish(1)
        assert the.look(1, 3) == [1, 1]
        assert [each["relay"] for each in the.told("relay_left_out")] == [2]
        await the.mended()
        assert the.look(1, 2, 3) == [1, 1, 1]


@in_loop
async def test_the_source_sends_each_byte_once_however_many_there_are(tmp_path: Path) -> None:
    async with house(tmp_path, 3) as the:
        await the.publish(0)
        await the.relays.let_go("engine/3")
        await the.publish(1)
        await the.relays.let_go("engine/2")
        await the.publish(2)
        rank = await the.workers.add(RelaySpec(str(Path(the.at(1).offer().address).parent.parent)))  # type: ignore[union-attr]
        await the.relays.take_in(rank, ["engine/4"])
        await the.relays.mend()
        assert the.look(1, rank) == [2, 2], "who comes is given the newest version"
        carried = the.told("weights_carried")
        assert [each["relays"] for each in carried] == [[1, 2, 3], [1, 2], [1], [rank]]
        assert [each["share"] for each in carried] == [1.0] * 4


@in_loop
async def test_where_nccl_does_not_work_versions_go_by_gloo(tmp_path: Path) -> None:
    async with house(tmp_path, 2, kind=DeviceRelay, device_of=lambda rank: f"GPU-{rank}") as the:
        await the.publish(0)
        await the.publish(1)
        assert the.look(1, 2) == [1, 1]
        (told,) = the.told("relays_by_gloo")
        assert "speak by gloo from now on, since NCCL failed: " in told["message"]
        assert "does not see the CUDA device GPU-" in told["message"]
        assert [each["transport"] for each in the.told("weights_carried")] == ["collective (gloo)"] * 2
        assert the.events == [], "nobody was left out for it"
