"""By which way weights go between two ends: from what both say of themselves."""

from __future__ import annotations

import os

import pytest

from headrace.weights.seen import Seen, Way, relays_needed, seen_here, way_between

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
    one, other = Seen("boot 1", "tmpfs 1", 1), Seen("boot 1", "tmpfs 1", 2)
    assert way_between(one, other) == "shm"


def test_without_a_boot_id_nobody_is_here() -> None:
    assert way_between(Seen("", "1", 1), Seen("", "1", 1)) == "collective"


def test_one_relay_for_all_that_share_memory() -> None:
    ends = {
        "engine/0": Seen("boot 1", "tmpfs 1", 11),
        "engine/1": Seen("boot 2", "tmpfs 1", 11),
        "engine/2": Seen("boot 3", "tmpfs 1", 11),
        "proximal/0": Seen("boot 2", "tmpfs 1", 12),
    }
    assert relays_needed(TRAINER, ends) == (("engine/1", "proximal/0"), ("engine/2",))
    assert relays_needed(TRAINER, ends, each=True) == (("engine/0",), ("engine/1",), ("engine/2",), ("proximal/0",))
    within = {"proximal/0": Seen("boot 1", "tmpfs 1", 10)}
    assert relays_needed(TRAINER, within, each=True) == (), "in the trainer's own process"


def test_this_process_sees_itself() -> None:
    here = seen_here()
    assert here.process == os.getpid()
    assert way_between(here, seen_here()) == "memory"
