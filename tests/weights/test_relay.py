"""Two relays of one process, a source and a receiver: what is not of one version is not taken."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.weights.plane import WeightError
from headrace.weights.relay import chain
from headrace.weights.relay.chain import BUCKET, Bucket
from headrace.weights.relay.journey import Journey, Meeting
from headrace.weights.relay.line import PeerError
from headrace.weights.relay.relay import Relay
from headrace.weights.shm import ShmPublisher, ShmReceiver
from headrace.weights.version import Version

SIZE = BUCKET // 4 + 1024
"""Numbers: two buckets."""
HOST = "127.0.0.1"


def numbers(version: int) -> torch.Tensor:
    """One in ten differs between two versions."""
    found = torch.arange(SIZE, dtype=torch.int32)
    found[::10] += version
    return found


class Pair:
    def __init__(self, folder: Path) -> None:
        for name in ("published", "source", "receiver"):
            (folder / name).mkdir()
        self.publisher = ShmPublisher(folder / "published")
        self.source, self.receiver = Relay(folder / "source", 5.0), Relay(folder / "receiver", 5.0)
        self.port = self.source.listen(HOST)

    def publish(self, number: int) -> None:
        self.publisher.publish(Version(0, number), [("a", numbers(number))])

    def meet(self) -> None:
        meeting = Meeting(HOST, self.port, f"group {id(object())}", 2)
        self._both(lambda: self.source.join(meeting, 0, HOST), lambda: self.receiver.join(meeting, 1, HOST))

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


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    pair = Pair(tmp_path)
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
