"""A version that several write into one slot, each its part: whole once all have, and nobody's before."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.weights.manifest import build_manifest
from headrace.weights.parts import OpenSlot, Part, PartWriter, require_all
from headrace.weights.plane import WeightError
from headrace.weights.shm import ShmPublisher, ShmReceiver
from headrace.weights.version import Version

ONE, TWO = Version(0, 1), Version(0, 2)


def opened(publisher: ShmPublisher, version: Version, tensors: dict[str, torch.Tensor]) -> OpenSlot:
    return OpenSlot(publisher.address, publisher.begin(build_manifest(version, tensors, checksums=False)).generation)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 7), max_size=4), st.lists(st.integers(0, 5), max_size=3))
def test_boxes_of_a_whole_make_it(
    tmp_path_factory: pytest.TempPathFactory, rows: list[int], columns: list[int]
) -> None:
    """[7, 5] float32 masters, cut anywhere, published in bfloat16."""
    whole = torch.randn(7, 5)
    outline = {"w": torch.empty(7, 5, dtype=torch.bfloat16, device="meta"), "n": torch.empty(3, device="meta")}
    publisher = ShmPublisher(tmp_path_factory.mktemp("slots"))
    told = opened(publisher, ONE, outline)
    written = PartWriter().write(told, [Part("n", (0,), torch.ones(3))])
    down, across = sorted({0, 7, *rows}), sorted({0, 5, *columns})
    for top, bottom in pairwise(down):
        for left, right in pairwise(across):
            written += PartWriter().write(told, [Part("w", (top, left), whole[top:bottom, left:right])])
    require_all(build_manifest(ONE, outline, checksums=False), written)
    publisher.end(build_manifest(ONE, outline, checksums=False), None)
    _, received = ShmReceiver(publisher.address).receive()
    assert received["w"].equal(whole.bfloat16())


def test_a_part_that_is_missing_is_told(tmp_path: Path) -> None:
    tensors = {"w": torch.ones(4, 2), "v": torch.ones(2)}
    told = opened(ShmPublisher(tmp_path), ONE, tensors)
    written = PartWriter().write(told, [Part("w", (0, 0), torch.ones(3, 2))])
    with pytest.raises(WeightError, match="v1 has 40 bytes, and those who have parts of it wrote 24; it is not off"):
        require_all(build_manifest(ONE, tensors, checksums=False), written)


def test_who_comes_late_writes_into_no_other_version(tmp_path: Path) -> None:
    tensors = {"w": torch.ones(4)}
    publisher, writer = ShmPublisher(tmp_path), PartWriter()
    for version in (ONE, TWO):
        told = opened(publisher, version, tensors)
        writer.write(told, [Part("w", (0,), torch.full((4,), float(version.number)))])
        publisher.end(build_manifest(version, tensors, checksums=False), None)
        with pytest.raises(WeightError, match=f"is written as generation {told.generation}; publish again"):
            writer.write(told, [Part("w", (0,), torch.zeros(4))])
    manifest, received = ShmReceiver(publisher.address).receive()
    assert (manifest.version, received["w"].tolist()) == (TWO, [2.0] * 4)


def test_memory_that_a_rank_does_not_see_is_told(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match="place all ranks of one model where they see the same memory"):
        PartWriter().write(OpenSlot(str(tmp_path / "elsewhere"), 1), [])


def _write_and_die(told: OpenSlot, name: str) -> None:
    PartWriter().write(told, [Part(name, (0,), torch.full((1000,), 2.0))])
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_writer_that_is_killed_leaves_the_version_before(tmp_path: Path) -> None:
    """Between its two tensors: nobody is told of the mixture, and the publisher's next version is whole."""
    tensors = {"w": torch.full((1000,), 1.0), "v": torch.full((1000,), 1.0)}
    publisher = ShmPublisher(tmp_path)
    publisher.publish(Version(0, 0), tensors.items())
    publisher.publish(ONE, tensors.items())
    receiver = ShmReceiver(publisher.address)
    told = opened(publisher, TWO, tensors)
    process = multiprocessing.get_context("fork").Process(target=_write_and_die, args=(told, "w"))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    manifest, received = receiver.receive()
    assert manifest.version == ONE
    assert all(tensor.eq(1.0).all() for tensor in received.values())
    again = opened(publisher, TWO, tensors)
    parts = [Part(name, (0,), torch.full((1000,), 3.0)) for name in tensors]
    require_all(build_manifest(TWO, tensors, checksums=False), PartWriter().write(again, parts))
    publisher.end(build_manifest(TWO, tensors, checksums=False), None)
    manifest, received = receiver.receive()
    assert manifest.version == TWO
    assert all(tensor.eq(3.0).all() for tensor in received.values())


def test_a_slot_that_is_ended_while_a_part_is_written_is_told(tmp_path: Path) -> None:
    tensors = {"w": torch.ones(4)}
    publisher = ShmPublisher(tmp_path)
    told = opened(publisher, ONE, tensors)

    def parts() -> Iterator[Part]:
        yield Part("w", (0,), torch.ones(2))
        publisher.end(build_manifest(ONE, tensors, checksums=False), None)

    with pytest.raises(WeightError, match="publish again"):
        PartWriter().write(told, parts())
