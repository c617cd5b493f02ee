"""Weights over gloo, from the process that sends them to what takes them in vLLM: real processes and groups."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import headrace_vllm
import pytest
import torch
from headrace_vllm.group import PREFIX, DamagedError, Group
from headrace_vllm.publication import size_of, tensors_in

from headrace.engines.servers import weight_sender
from headrace.engines.servers.http import ServerGone, ServerRefused
from headrace.engines.servers.weight_sender import WeightSender, buckets, chunks
from headrace.runtime.clock import SystemClock
from headrace.weights.plane import BUCKET_BYTES, TensorEntry, WeightError, WeightOffer
from headrace.weights.shm import ShmPublisher
from headrace.weights.version import Version

SOON_S = 20.0
"""Long before any deadline of a broadcast."""


def tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "a.weight": torch.randn(300, 7, generator=generator),
        "b.weight": torch.randn(33, generator=generator).to(torch.bfloat16),
        "none": torch.empty(0, 4),
        "c.bias": torch.full((1,), float("nan")),
    }


def published(publisher: ShmPublisher, number: int) -> WeightOffer:
    publisher.publish(Version(0, number), tensors(number).items())
    offer = publisher.receiver().offer()
    assert offer is not None
    return offer


def entries_of(offer: WeightOffer) -> list[dict[str, object]]:
    assert offer.manifest is not None
    return [{"name": each.name, "shape": each.shape, "dtype": each.dtype} for each in offer.manifest.entries]


def require_holds(data: torch.Tensor, offer: WeightOffer) -> None:
    """Bit for bit."""
    found, wanted = tensors_in(data, entries_of(offer)), tensors(offer.version.number)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].shape == tensor.shape
        assert found[name].dtype == tensor.dtype
        assert found[name].view(torch.uint8).tolist() == tensor.view(torch.uint8).tolist(), name


@asynccontextmanager
async def opened(tmp_path: Path, host: str = "127.0.0.1") -> AsyncGenerator[WeightSender]:
    sender = WeightSender(host, SystemClock(), tmp_path / "logs" / "sent.log")
    try:
        await sender.open()
        yield sender
    finally:
        await sender.close()


async def come(sender: WeightSender, ranks: int = 1) -> list[Group]:
    """Who takes weights, in threads of this process."""
    address = f"{sender.host}:{sender.port}"
    coming = [asyncio.to_thread(Group, address, 1 + rank, 1 + ranks, 60.0) for rank in range(ranks)]
    *groups, _ = await asyncio.gather(*coming, sender.join((PREFIX,), ranks))
    return [group for group in groups if group is not None]


async def send(sender: WeightSender, offer: WeightOffer) -> None:
    await sender.send(chunks(await sender.take(offer)), sums=True)
    await sender.leave()


@pytest.mark.slow
def test_what_is_published_comes_to_all_bit_for_bit_and_again_in_the_same_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_sender, "BUCKET_BYTES", 4096)
    publisher, numbers = ShmPublisher(tmp_path), count(1)

    async def run(host: str) -> None:
        async with opened(tmp_path, host) as sender:
            groups = await come(sender, ranks=2)
            for _ in range(3):
                offer = published(publisher, next(numbers))
                taking = [asyncio.to_thread(group.received, size_of(entries_of(offer)), 4096) for group in groups]
                *found, _ = await asyncio.gather(*taking, send(sender, offer))
                for data in found:
                    assert data is not None
                    require_holds(data, offer)
            assert listening_at(sender.port) == {host}

    for host in ("127.0.0.1", *own_addresses()):
        asyncio.run(run(host))


def listening_at(port: int) -> set[str]:
    """Addresses of this machine at which the port is open."""
    found = set()
    for address in ("127.0.0.1", "127.0.0.2", *own_addresses()):
        with socket.socket() as trying:
            trying.settimeout(5.0)
            if trying.connect_ex((address, port)) == 0:
                found.add(address)
    return found


def own_addresses() -> list[str]:
    """Beyond loopback; none where there is no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect(("192.0.2.1", 9))
        except OSError:
            return []
        return [str(way.getsockname()[0])]


@pytest.mark.slow
def test_what_comes_otherwise_than_it_was_sent_is_not_taken(tmp_path: Path) -> None:
    offer = published(ShmPublisher(tmp_path), 1)

    async def run() -> None:
        async with opened(tmp_path) as sender:
            (group,) = await come(sender)
            size = size_of(entries_of(offer))

            async def sends_other_sums() -> None:
                parts = chunks(await sender.take(offer))
                await sender.send(parts)
                await sender.send([(parts[0][0], parts[0][0] + 8)])  # as if it were the sum

            with pytest.raises(DamagedError, match="is not what was sent"):
                await asyncio.gather(asyncio.to_thread(group.received, size, BUCKET_BYTES), sends_other_sums())

    asyncio.run(run())


TAKER = """
import sys
from headrace_vllm.group import Group

group = Group(sys.argv[1], 1, 2, 60.0)
print("came", flush=True)
sys.stdin.readline()
"""


def taker(address: str) -> subprocess.Popen[str]:
    path = Path(headrace_vllm.__file__).parents[1]
    return subprocess.Popen(
        [sys.executable, "-c", TAKER, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{path}:{os.environ.get('PYTHONPATH', '')}"},
    )


@pytest.mark.slow
def test_once_a_taker_is_killed_the_sending_ends_at_once_and_another_one_gets_the_next_version(tmp_path: Path) -> None:
    publisher = ShmPublisher(tmp_path)

    async def run() -> None:
        async with opened(tmp_path) as sender:
            process = taker(f"{sender.host}:{sender.port}")
            try:
                await sender.join((PREFIX,), 1)
                sending = asyncio.create_task(send(sender, published(publisher, 1)))
                await asyncio.sleep(0.5)
                assert not sending.done(), "it waits for who takes nothing"
                before = time.monotonic()
                process.send_signal(signal.SIGKILL)
                with pytest.raises(WeightError, match=r"weights to be taken by the server: .*onnection"):
                    await sending
                assert time.monotonic() - before < SOON_S
            finally:
                process.kill()
                process.communicate()
            port = sender.port
            await sender.open()
            assert not sender.has_group
            assert sender.port != port
            (group,) = await come(sender)
            offer = published(publisher, 2)
            size = size_of(entries_of(offer))
            data, _ = await asyncio.gather(asyncio.to_thread(group.received, size, BUCKET_BYTES), send(sender, offer))
            require_holds(data, offer)

    asyncio.run(run())


@pytest.mark.slow
def test_once_sending_is_given_up_who_waits_for_it_is_told(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as sender:
            (group,) = await come(sender)
            taking = asyncio.create_task(asyncio.to_thread(group.received, 4096, 4096))
            await asyncio.sleep(0.5)
            assert not taking.done()
            before = time.monotonic()

            async def refuses() -> None:
                raise ServerRefused("v1 to be loaded", "POST /load", 400, "no")

            with pytest.raises(ServerRefused):
                await sender.during(refuses(), asyncio.sleep(SOON_S))
            with pytest.raises(RuntimeError):
                await taking
            assert time.monotonic() - before < SOON_S

    asyncio.run(run())


@pytest.mark.slow
def test_a_group_that_does_not_come_together_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_sender, "GROUP_S", 1.0)

    async def run() -> None:
        async with opened(tmp_path) as sender:
            where = f"process.* of the server to come to 127.0.0.1:{sender.port}"
            with pytest.raises(WeightError, match=where):
                await sender.join((PREFIX,), 1)
            with pytest.raises(WeightError, match=r"has ended; what it said is in .*sent\.log"):
                await sender.leave()

    asyncio.run(run())


@pytest.mark.slow
def test_a_version_that_is_overtaken_is_not_taken_for_whole(tmp_path: Path) -> None:
    publisher = ShmPublisher(tmp_path)

    async def run() -> None:
        async with opened(tmp_path) as sender:
            offer = published(publisher, 1)
            await sender.take(offer)
            published(publisher, 2)
            published(publisher, 3)
            with pytest.raises(WeightError, match=r"v1 is not whole in .* any more: a newer one was published"):
                await sender.leave()
            await sender.open()
            (group,) = await come(sender)
            with pytest.raises(WeightError, match="v1 is not whole"):
                await sender.take(offer)
            assert sender.has_group, "nobody waited for it"
            newest = published(publisher, 4)
            size = size_of(entries_of(newest))
            data, _ = await asyncio.gather(asyncio.to_thread(group.received, size, BUCKET_BYTES), send(sender, newest))
            require_holds(data, newest)

    asyncio.run(run())


@pytest.mark.slow
def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path, host="192.0.2.1"):
            pass

    with pytest.raises(WeightError, match=r"weights to be sent from 192\.0\.2\.1: .*assign requested address"):
        asyncio.run(run())


def test_what_the_server_says_is_told_rather_than_that_sending_ended(tmp_path: Path) -> None:
    sender = WeightSender("127.0.0.1", SystemClock(), tmp_path / "sent.log")

    async def ends(error: Exception, after_s: float = 0.0) -> None:
        await asyncio.sleep(after_s)
        raise error

    async def run(answer: Exception, sending: Exception, after_s: float) -> None:
        await sender.during(ends(answer, after_s), ends(sending))

    closed = WeightError("Connection closed by peer")
    no = ServerRefused("v1 to be loaded", "POST /load", 500, "no such tensor")
    with pytest.raises(WeightError, match="by peer; v1 to be loaded: the server answered 500 to POST /load: no such"):
        asyncio.run(run(no, closed, 0.01))
    with pytest.raises(ServerGone, match="it is dead"):
        asyncio.run(run(ServerGone("it is dead"), closed, 0.01))
    assert asyncio.run(sender.during(asyncio.sleep(0.01, 7), asyncio.sleep(0.02))) == 7


def test_parts_have_so_many_bytes_at_most_or_are_one_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_sender, "BUCKET_BYTES", 100)
    sizes = {"a": 40, "none": 0, "b": 60, "large": 300, "c": 1}
    entries = [TensorEntry(name, (size,), "uint8", None) for name, size in sizes.items()]
    assert chunks(entries) == [(4096 + at, min(4096 + at + 100, 4096 + 512)) for at in range(0, 512, 100)]
    assert [[(entry.name, place) for entry, place in part] for part in buckets(entries)] == [
        [("a", (4096, 4136)), ("b", (4160, 4220))],
        [("large", (4224, 4524))],
        [("c", (4544, 4545))],
    ]
