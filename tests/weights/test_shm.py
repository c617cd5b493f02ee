"""Weights in shared memory: what another process copies is one version, whoever is killed."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from marked import said

from headrace.weights.manifest import build_manifest
from headrace.weights.plane import Received, WeightError
from headrace.weights.shm import ShmPublisher, ShmReceiver
from headrace.weights.slots import Slot
from headrace.weights.swap_check import check_tokens, make_check
from headrace.weights.version import Version

WRITER = """
import sys, torch
from pathlib import Path
from headrace.weights.shm import ShmPublisher
from headrace.weights.version import Version

publisher = ShmPublisher(Path(sys.argv[1]))
number = 0
while True:
    number += 1
    publisher.publish(Version(0, number), ((f"t{i}", torch.full((300_000,), float(number))) for i in range(4)))
    print(number, flush=True)
"""


def publish(publisher: ShmPublisher, number: int, size: int = 3) -> None:
    publisher.publish(Version(0, number), [("a", torch.full((size,), float(number)))])


def test_weights_go_into_tensors_that_are_there(tmp_path: Path) -> None:
    publisher = ShmPublisher(tmp_path)
    receiver, own = ShmReceiver(publisher.address), {"a": torch.zeros(3), "own": torch.ones(1)}
    for number in (1, 2, 3):
        publish(publisher, number)
        assert receiver.latest() == Version(0, number)
        assert receiver.receive_into(own).version == Version(0, number)
        assert own["a"].tolist() == [number] * 3
    assert own["own"].tolist() == [1.0]


def test_a_tensor_of_another_shape_is_refused_on_either_side(tmp_path: Path) -> None:
    publisher = ShmPublisher(tmp_path)
    publish(publisher, 1)
    with pytest.raises(WeightError, match=r"'a' is published as torch.float32\[3\], and the receiver has .*\[4\]"):
        publisher.receiver().receive_into({"a": torch.zeros(4)})
    with pytest.raises(WeightError, match="the receiver has none of that name"):
        publisher.receiver().receive_into({})
    with pytest.raises(WeightError, match="cannot publish v2: its tensors are not those of v1"):
        publish(publisher, 2, size=4)
    assert publisher.receiver().latest() == Version(0, 1)


def test_a_version_whose_check_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    publisher = ShmPublisher(tmp_path)
    check = make_check(check_tokens(50), lambda tokens: np.zeros((64, 4)), temperature=1.0, dtype="float32")
    publisher.send(publisher.snapshot(Version(0, 0), [("a", torch.full((3,), 0.0))], check))
    publisher.send(publisher.snapshot(Version(0, 1), [("a", torch.full((3,), 1.0))], check))
    (tmp_path / "check-6.json").mkdir()
    with pytest.raises(WeightError, match="cannot publish"):
        publisher.send(publisher.snapshot(Version(0, 2), [("a", torch.full((3,), 2.0))], check))
    (tmp_path / "check-6.json").rmdir()
    again = publisher.snapshot(Version(0, 2), [("a", torch.full((3,), 2.0))], check)
    receiver = ShmReceiver(publisher.address)
    assert receiver.latest() == Version(0, 1), "also while the next one is copied in"
    publisher.send(again)
    assert receiver.latest() == Version(0, 2)


def test_a_copy_that_is_overtaken_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = ShmPublisher(tmp_path)
    publish(publisher, 1)
    receiver, overtaking = publisher.receiver(), iter((2, 3))

    class Watched(dict[str, torch.Tensor]):
        def get(self, *args: object) -> torch.Tensor:  # type: ignore[override]
            for number in overtaking:
                publish(publisher, number)
            return self["a"]

    own = Watched(a=torch.zeros(3))
    assert receiver.receive_into(own).version == Version(0, 3)
    assert own["a"].tolist() == [3.0] * 3


def test_damage_is_told(tmp_path: Path) -> None:
    publisher = ShmPublisher(tmp_path)
    publish(publisher, 1)
    (tmp_path / "layout.json").write_text("{}")
    with pytest.raises(WeightError, match="is no manifest"):
        ShmReceiver(publisher.address).latest()


def _received(receiver: ShmReceiver) -> tuple[int, list[float]]:
    own = {"a": torch.zeros(3)}
    return receiver.receive_into(own).version.number, own["a"].tolist()


def _made(receiver: ShmReceiver) -> tuple[int, list[float]]:
    return receiver.receive_as(lambda found: (found.manifest.version.number, found.tensors["a"].tolist()))


@pytest.mark.parametrize("take", [_received, _made])
def test_wherever_a_writer_goes_on_between_two_looks_nobody_takes_two_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, take: Callable[[ShmReceiver], tuple[int, list[float]]]
) -> None:
    """The writer comes back to the reader's slot just before the reader's look `first` at a generation, and has it
    whole before the look `second`: all pairs."""
    due = dict[int, list[Callable[[], object]]]()
    looks, look = itertools.count(1), Slot.__dict__["generation"]

    def looked(slot: Slot) -> int:
        for step in due.get(next(looks), ()):
            step()
        return int(look.fget(slot))

    monkeypatch.setattr(Slot, "generation", property(looked, look.fset))
    three = build_manifest(Version(0, 3), {"a": torch.zeros(3)}, checksums=False)
    for first, second in itertools.combinations_with_replacement(range(1, 12), 2):
        due.clear()
        publisher = ShmPublisher(Path(tempfile.mkdtemp(dir=tmp_path)))
        publish(publisher, 1)
        (slot, _), looks = publisher._slots, itertools.count(1)
        a = slot.tensors["a"]
        due[first] = [partial(publish, publisher, 2), partial(publisher.begin, three), partial(a[:1].fill_, 3)]
        due.setdefault(second, []).extend((partial(a.fill_, 3), partial(publisher.end, three, None)))
        number, values = take(publisher.receiver())
        assert values == [number] * 3, (first, second)


@pytest.mark.slow
def test_a_reader_in_another_process_never_sees_two_versions_and_outlives_the_writer(tmp_path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        receiver, seen = ShmReceiver(str(tmp_path)), list[int]()
        own = {f"t{i}": torch.zeros(300_000) for i in range(4)}
        until = time.monotonic() + 2.0
        while time.monotonic() < until:
            try:
                number = receiver.receive_into(own).version.number
            except WeightError:  # overtaken three times: this writer does nothing else
                continue
            assert all((tensor == number).all() for tensor in own.values())
            seen.append(number)
        assert seen == sorted(seen)
        assert len(set(seen)) > 3
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    number = receiver.receive_into(own).version.number
    assert all((tensor == number).all() for tensor in own.values()), "the other slot is whole"


def test_what_is_made_of_an_overtaken_version_is_made_again(tmp_path: Path) -> None:
    publisher = ShmPublisher(tmp_path)
    publish(publisher, 1)
    overtaking, seen = iter((2, 3)), []

    def made(received: Received) -> list[float]:
        seen.append(received.manifest.version.number)
        for number in overtaking:
            publish(publisher, number)
        return received.tensors["a"].tolist()

    assert publisher.receiver().receive_as(made) == [3.0] * 3
    assert seen == [1, 3]


def test_where_writes_may_be_seen_out_of_order_a_checksum_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShmPublisher, "checks_arrival", True)
    monkeypatch.setattr(ShmReceiver, "reads_in_place", False)
    publisher = ShmPublisher(tmp_path)
    publish(publisher, 1)
    receiver = publisher.receiver()
    assert receiver.receive()[1]["a"].tolist() == [1.0] * 3
    assert receiver.receive_as(lambda received: received.lasts), "a copy, which was checked"
    publisher._slots[0].tensors["a"][0] = 5.0  # as if the last bytes had not arrived
    with pytest.raises(WeightError, match="while they were copied"):
        receiver.receive()


def test_each_tensor_on_its_way_is_told(tmp_path: Path) -> None:
    """Of copies that were made elsewhere first, as on a device; and of 12 bytes, 8 at a time."""
    publisher, own = ShmPublisher(tmp_path), {name: torch.ones(1) for name in "abc"}
    with said() as copied:
        snapshot = publisher.snapshot(Version(0, 1), own.items())
    assert copied.units == ["chunk"], "all at once"
    copies = {name: tensor.clone() for name, tensor in snapshot.tensors.items()}
    with said() as sent:
        publisher.send(replace(snapshot, tensors=copies))
    assert sent.units == ["chunk"] * 3
    with said() as taken:
        publisher.receiver().receive_buckets(lambda bucket: None, limit=8)
    assert taken.units == ["chunk"] * 2
    with said() as copied:
        ShmReceiver(publisher.address).receive_into(own)
    assert copied.units == ["chunk"]
