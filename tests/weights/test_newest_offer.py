"""What is newest where an offer leads, as it is read without torch: as the transport's own receiver has it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.weights.disk import DiskPublisher
from headrace.weights.newest_offer import Offered, newest_offer
from headrace.weights.plane import WeightError, WeightOffer, WeightPublisher
from headrace.weights.shm import ShmPublisher
from headrace.weights.swap_check import SwapCheck
from headrace.weights.version import Version


def check_of(number: int) -> SwapCheck:
    return SwapCheck(np.zeros((1, 3), np.int32), np.full((1, 2), -number, np.float32), 1.0, "float32")


def publish(publisher: WeightPublisher, number: int, *, checked: bool = True) -> WeightOffer:
    weights = [("w", torch.full((4,), float(number)))]
    publisher.send(publisher.snapshot(Version(0, number), weights, check_of(number) if checked else None))
    offer = publisher.receiver().offer()
    assert offer is not None
    return offer


@pytest.fixture(params=[ShmPublisher, DiskPublisher])
def publisher(request: pytest.FixtureRequest, tmp_path: Path) -> WeightPublisher:
    made: WeightPublisher = request.param(tmp_path)
    return made


def test_a_version_that_was_overtaken_gives_way_to_the_newest_with_its_own_check(publisher: WeightPublisher) -> None:
    first = publish(publisher, 1)
    assert newest_offer(first) is first
    for number in (2, 3, 4):
        theirs = publish(publisher, number)
        ours = Offered(first).offer()
        assert ours is not None
        assert (ours.version, ours.transport, ours.address) == (theirs.version, theirs.transport, theirs.address)
        assert ours.swap_check is not None
        assert ours.swap_check.logprobs.tolist() == [[-number, -number]]
        if theirs.transport == "shm":
            assert ours.manifest == theirs.manifest
    assert Offered(first).latest() == Version(0, 1)
    unchecked = publish(publisher, 5, checked=False)
    assert newest_offer(first).version == unchecked.version
    assert newest_offer(first).swap_check is None


def test_where_nothing_as_new_is_left_it_is_told_before_anybody_goes_there(
    publisher: WeightPublisher, tmp_path: Path
) -> None:
    offer = publish(publisher, 1)
    with pytest.raises(WeightError, match=r"v7 was offered, and v1 is the newest at"):
        newest_offer(replace(offer, version=Version(0, 7)))
    with pytest.raises(WeightError, match=r"cannot be read|none is at"):
        newest_offer(replace(offer, address=str(tmp_path / "gone")))


def test_what_a_server_takes_nothing_from_is_taken_as_it_was_offered() -> None:
    offer = WeightOffer(Version(0, 1), "cuda_ipc", "nowhere")
    assert newest_offer(offer) is offer


def test_it_needs_no_torch() -> None:
    code = "import sys, headrace.weights.newest_offer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
