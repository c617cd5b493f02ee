"""Two relays of one process, a source and a receiver: what is not of one version is not taken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import torch
from marked import said
from torch.distributed import HashStore, Store

from headrace.weights.gloo import gloo_group
from headrace.weights.plane import WeightError
from headrace.weights.relay import chain, nccl_wire
from headrace.weights.relay.chain import BUCKET, Bucket
from headrace.weights.relay.journey import Journey, Meeting
from headrace.weights.relay.line import NcclError, PeerError
from headrace.weights.relay.nccl_wire import NcclFault, NcclWire
from headrace.weights.relay.relay import Relay
from headrace.weights.relay.wire import GlooWire
from headrace.weights.shm import ShmPublisher, ShmReceiver
from headrace.weights.version import Version

SIZE = BUCKET // 4 + 1024
"""Numbers: two buckets."""
HOST = "127.0.0.1"
GROUPS = count()


def numbers(version: int) -> torch.Tensor:
    """One in ten differs between two versions."""
    found = torch.arange(SIZE, dtype=torch.int32)
    found[::10] += version
    return found


class Pair:
    def __init__(self, folder: Path, devices: tuple[str, ...] = (), still_s: float = 5.0) -> None:
        """`devices`: see `Meeting`."""
        self.devices = devices
        for name in ("published", "source", "receiver"):
            (folder / name).mkdir()
        self.publisher = ShmPublisher(folder / "published")
        self.source, self.receiver = Relay(folder / "source", still_s), Relay(folder / "receiver", still_s)
        self.port = self.source.listen(HOST)

    def publish(self, number: int) -> None:
        self.publisher.publish(Version(0, number), [("a", numbers(number))])

    def meet(self) -> tuple[Any, ...]:
        meeting = Meeting(HOST, self.port, f"group {next(GROUPS)}", 2, self.devices)
        return self._both(lambda: self.source.join(meeting, 0, HOST), lambda: self.receiver.join(meeting, 1, HOST))

    def journey(self, **changes: Any) -> Journey:
        found = self.source.look(self.publisher.address)
        assert found.offer is not None
        assert found.offer.manifest is not None
        return replace(Journey(found.offer.manifest, (0, 1), None, True, None), **changes)

    def carry(self, journey: Journey) -> tuple[Any, Any]:
        """What the source and the receiver answer, or raise."""
        return self._both(
            lambda: self.source.send(journey, self.publisher.address), lambda: self.receiver.take(journey)
        )

    def taken(self) -> Version:
        """The newest version at the receiver, whole."""
        received = ShmReceiver(self.receiver.address).received()
        version = received.manifest.version
        assert torch.equal(received.tensors["a"], numbers(version.number))
        return version

    @staticmethod
    def _both(*calls: Any) -> tuple[Any, ...]:
        answers: list[Any] = [None] * len(calls)

        def ask(place: int) -> None:
            try:
                answers[place] = calls[place]()
            except WeightError as error:
                answers[place] = error

        threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return tuple(answers)


def by_gloo(store: Store, rank: int, size: int, seconds: float) -> Any:
    return gloo_group(store, rank, size, HOST, seconds)


@pytest.fixture(params=["gloo", "nccl's"])
def pair(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """By gloo, or by what speaks NCCL, with a group of gloo's in its place, and the processor for a device."""
    if request.param == "gloo":
        devices: tuple[str, ...] = ()
    else:
        devices = ("cpu", "cpu")
        monkeypatch.setattr(nccl_wire, "_nccl_group", by_gloo)
    pair = Pair(tmp_path, devices)
    pair.publish(1)
    pair.meet()
    sent, arrived = pair.carry(pair.journey())
    assert (sent.size, sent.sent, sent.overtaken, arrived) == (4 * SIZE, 4 * SIZE, False, True)
    assert pair.taken() == Version(0, 1)
    return pair


def test_what_changed_is_put_on_the_version_before(pair: Pair) -> None:
    pair.publish(2)
    found = pair.source.look(pair.publisher.address)
    assert found.before == Version(0, 1)
    sent, arrived = pair.carry(pair.journey(base=found.before))
    assert arrived
    assert 0 < sent.sent < 0.1 * sent.size
    assert pair.taken() == Version(0, 2)


@pytest.mark.parametrize("threads", [2, 3, 20])
def test_threads_that_compare_give_the_same_buckets_in_order(threads: int) -> None:
    torch.manual_seed(0)
    before = torch.randint(0, 256, (9 * BUCKET + 4096,), dtype=torch.uint8)
    after = before.clone()
    after[BUCKET::1000] += 1
    after[4 * BUCKET : 5 * BUCKET] += 1  # so much that it goes whole
    one = list(chain.buckets(after, before, summed=True))
    many = list(chain.buckets(after, before, summed=True, threads=threads))
    assert {each.kind for each in one} == {0, 1}
    assert len(one) == 9
    assert [(each.kind, each.checksum, each.part.tolist()) for each in many] == [
        (each.kind, each.checksum, each.part.tolist()) for each in one
    ]


def test_threads_that_compare_end_with_whoever_asked() -> None:
    def compare() -> list[str]:
        return [each.name for each in threading.enumerate() if each.name.startswith("changes")]

    memory = torch.zeros(6 * BUCKET, dtype=torch.uint8)
    parts = chain.buckets(memory, memory.clone(), summed=True, threads=2)
    next(parts)
    assert compare()
    parts.close()
    assert not compare()


@pytest.mark.parametrize(("processors", "threads"), [(1, 1), (2, 1), (7, 1), (8, 2), (16, 4), (96, 8)])
def test_most_processors_are_left_to_who_trains(processors: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "available_processors", lambda: processors)
    assert chain.packers() == threads


def test_a_version_that_is_overtaken_on_its_way_is_not_taken(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.publish(2)
    journey, buckets = pair.journey(summed=False), chain.buckets

    def overtaken(*args: Any, **more: Any) -> Iterator[Bucket]:
        for number, bucket in enumerate(buckets(*args, **more)):
            if number == 1:
                pair.publish(3)
                pair.publish(4)  # where version 2 was
            yield bucket

    monkeypatch.setattr(chain, "buckets", overtaken)
    sent, arrived = pair.carry(journey)
    assert sent.overtaken
    assert arrived is False
    assert pair.taken() == Version(0, 1)
    monkeypatch.undo()
    sent, arrived = pair.carry(pair.journey())
    assert arrived, "the group is there still"
    assert pair.taken() == Version(0, 4)


def test_what_is_damaged_is_not_taken(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.publish(2)
    buckets = chain.buckets

    def damaged(*args: Any, **more: Any) -> Iterator[Bucket]:
        for bucket in buckets(*args, **more):
            yield replace(bucket, part=bucket.part.clone().fill_(7))

    monkeypatch.setattr(chain, "buckets", damaged)
    _, refused = pair.carry(pair.journey())
    assert isinstance(refused, WeightError)
    assert "damaged on their way (checksum differs)" in str(refused)
    assert pair.taken() == Version(0, 1)


def test_who_has_another_version_before_is_given_no_changes(pair: Pair) -> None:
    pair.publish(2)
    pair.publish(3)
    sent, refused = pair.carry(pair.journey(base=Version(0, 2)))
    assert isinstance(refused, WeightError)
    assert "v2 is not here, and what changed since was to come" in str(refused)
    assert isinstance(sent, PeerError), "the group is over"
    with pytest.raises(PeerError, match="in no group"):
        pair.receiver.take(pair.journey())
    pair.meet()
    _, arrived = pair.carry(pair.journey())
    assert arrived


def test_an_older_version_is_refused(pair: Pair) -> None:
    pair.publish(2)
    older = pair.journey(manifest=replace(pair.journey().manifest, version=Version(0, 1)))
    _, refused = pair.carry(older)
    assert isinstance(refused, WeightError)
    assert "is not newer" in str(refused)
    assert pair.taken() == Version(0, 1)


def test_where_nobody_listens_is_told(tmp_path: Path) -> None:
    relay = Relay(tmp_path)
    with pytest.raises(WeightError, match=r"relays cannot meet at 192\.0\.2\.1: .*; set weights\.host to an address"):
        relay.listen("192.0.2.1")


def test_a_relay_that_leaves_on_the_way_is_heard_of_at_once(pair: Pair) -> None:
    """Long before the deadline of the other, which waits for what comes next, or for what it sends to be taken."""
    pair.publish(2)
    journey, took = pair.journey(), []

    def leaves() -> None:
        line = pair.receiver._of_group()
        line.receive(torch.empty(24, dtype=torch.uint8), 0).here()
        pair.receiver.leave()

    def sends() -> None:
        began = monotonic()
        try:
            pair.source.send(journey, pair.publisher.address)
        finally:
            took.append(monotonic() - began)

    refused, _ = pair._both(sends, leaves)
    assert isinstance(refused, PeerError)
    assert took[0] < 4.0, "of five seconds"
    assert pair.taken() == Version(0, 1)
    pair.meet()
    _, arrived = pair.carry(pair.journey())
    assert arrived
    assert pair.taken() == Version(0, 2)


@pytest.mark.parametrize("devices", [("GPU-1", "GPU-2"), ("cpu", "cpu")])
def test_where_nccl_does_not_work_the_group_says_so(tmp_path: Path, devices: tuple[str, ...]) -> None:
    """A device that is not seen, and a torch without NCCL, or none of the devices that it is for. Who fails leaves, and
    the other may hear of that first."""
    pair = Pair(tmp_path, devices)
    answers = pair.meet()
    assert all(isinstance(each, PeerError) for each in answers), answers
    assert any(isinstance(each, NcclError) for each in answers), answers
    pair.devices = ()
    assert pair.meet() == (None, None)


@pytest.mark.parametrize("kind", [OSError, RuntimeError, KeyError])
def test_where_nccl_fails_in_whatever_way_no_connection_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """As where no interface has the address. What is no fault of NCCL's is raised as it is."""
    closed = []

    def fails(*args: Any) -> None:
        raise kind("no interface")

    def close(wire: GlooWire) -> None:
        closed.append(wire)

    monkeypatch.setattr(nccl_wire, "_nccl_group", fails)
    monkeypatch.setattr(GlooWire, "close", close)
    with pytest.raises(KeyError if kind is KeyError else NcclFault, match="no interface"):
        NcclWire(HashStore(), 0, 1, HOST, 5.0, torch.device("cpu"))
    assert len(closed) == 1


@pytest.mark.parametrize("devices", [(), ("cpu", "cpu")])
def test_what_nobody_takes_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: tuple[str, ...]
) -> None:
    monkeypatch.setattr(nccl_wire, "_nccl_group", by_gloo)
    pair = Pair(tmp_path, devices, still_s=1.0)
    pair.publish(1)
    assert pair.meet() == (None, None)
    with pytest.raises(PeerError, match="waited for bytes to relay 1: "):
        pair.source.send(pair.journey(), pair.publisher.address)
    with pytest.raises(PeerError, match="in no group"):
        pair.source.send(pair.journey(), pair.publisher.address)


def test_each_bucket_is_told_where_it_leaves_and_where_it_comes(pair: Pair) -> None:
    """Two of them, and the verdict."""
    pair.publish(2)
    journey, units = pair.journey(), {}

    def told(end: str, call: Callable[[], object]) -> None:
        with said() as found:
            call()
        units[end] = found.units

    pair._both(
        lambda: told("source", lambda: pair.source.send(journey, pair.publisher.address)),
        lambda: told("receiver", lambda: pair.receiver.take(journey)),
    )
    assert units == {"source": ["chunk"] * 3, "receiver": ["chunk"] * 3}
    assert pair.taken() == Version(0, 2)
