"""By which way weights go between two ends: from what both say of themselves."""

from __future__ import annotations

import os

import pytest

from headrace.weights.seen import Seen, Way, needs_relay, seen_here, way_between

TRAINER = Seen("boot 1", "tmpfs 1", 10, "GPU-1")


@pytest.mark.parametrize(
    ("end", "way"),
    [
        (Seen("boot 1", "tmpfs 1", 10, "GPU-1"), "memory"),
        (Seen("boot 1", "tmpfs 1", 11, "GPU-1"), "cuda_ipc"),
        (Seen("boot 1", "tmpfs 1", 11, "GPU-2"), "shm"),
        (Seen("boot 1", "tmpfs 1", 11, "cpu"), "shm"),
        (Seen("boot 1", "tmpfs 2", 11, "GPU-1"), "collective"),  # a container beside
        (Seen("boot 2", "tmpfs 1", 10, "GPU-1"), "collective"),
    ],
)
def test_the_fastest_that_both_see(end: Seen, way: Way) -> None:
    assert way_between(TRAINER, end) == way


def test_two_on_the_processor_share_no_device() -> None:
    one, other = Seen("boot 1", "tmpfs 1", 1, "cpu"), Seen("boot 1", "tmpfs 1", 2, "cpu")
    assert way_between(one, other) == "shm"


def test_without_a_boot_id_nobody_is_here() -> None:
    assert way_between(Seen("", "1", 1, "cpu"), Seen("", "1", 1, "cpu")) == "collective"


def test_a_relay_for_whoever_does_not_see_the_memory_or_for_each() -> None:
    ends = [
        Seen("boot 1", "tmpfs 1", 11, "cpu"),
        Seen("boot 2", "tmpfs 1", 11, "cpu"),
        Seen("boot 1", "tmpfs 2", 12, "cpu"),
    ]
    assert [needs_relay(TRAINER, end) for end in ends] == [False, True, True]
    assert [needs_relay(TRAINER, end, each=True) for end in ends] == [True] * 3
    assert not needs_relay(TRAINER, Seen("boot 1", "tmpfs 1", 10, "cpu"), each=True), "in the trainer's own process"


def test_loopback_is_that_of_a_machine_or_of_a_container_s_own() -> None:
    one = Seen("boot 1", "tmpfs 1", 1, "cpu", loopback="boot 1 net 1")
    assert one.shares_loopback(Seen("boot 1", "tmpfs 2", 2, "cpu", loopback="boot 1 net 1"))
    assert not one.shares_loopback(Seen("boot 1", "tmpfs 1", 2, "cpu", loopback="boot 1 net 2"))
    assert not Seen("", "1", 1, "cpu").shares_loopback(Seen("", "1", 1, "cpu"))


def test_this_process_sees_itself() -> None:
    here = seen_here("GPU-1")
    assert (here.process, here.device) == (os.getpid(), "GPU-1")
    assert way_between(here, seen_here("GPU-1")) == "memory"
