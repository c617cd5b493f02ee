"""Whether relays speak by NCCL: from where the ends are, and from what came of it."""

from __future__ import annotations

import pytest

from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.workers import WorkerError, WorkerLost
from headrace.weights.relay.nccl_use import NcclUse
from headrace.weights.seen import speak_by_nccl

ONE, OTHER, THIRD = ("GPU-1", ["GPU-1", "GPU-2"]), ("GPU-2", ["GPU-1", "GPU-2"]), ("GPU-3", ["GPU-3"])


@pytest.mark.parametrize(
    ("ends", "by_nccl"),
    [
        ((ONE, OTHER), True),
        ((ONE, OTHER, THIRD), True),
        ((ONE, ONE), False),  # the engine is on the trainer's device, of which NCCL takes one rank
        ((ONE, OTHER, OTHER), False),
        ((ONE, ("cpu", ["GPU-2"])), False),  # a server, or a model on the processor
        ((("cpu", []), ("cpu", [])), False),
        ((ONE, ("GPU-3", ["GPU-1"])), False),  # the relay is shown other devices
        ((ONE, ("GPU-3", [])), False),  # its torch has no NCCL
    ],
)
def test_it_is_for_ends_with_a_device_each_that_their_relays_can_use(
    ends: tuple[tuple[str, list[str]], ...], by_nccl: bool
) -> None:
    devices, usable = zip(*ends, strict=True)
    assert speak_by_nccl(devices, usable) == by_nccl
    use = NcclUse(lambda rank: devices[rank])
    assert use.devices(range(len(ends)), usable) == (devices if by_nccl else ())
    assert use.is_used == by_nccl


DEATH, SILENCE = WorkerLost(1, "killed"), WaitTimeout("relay 1", 1.0)
PEER, REFUSED = WorkerError(1, "PeerError", "connection reset"), WorkerError(1, "NcclError", "no NCCL")
DAMAGED = WorkerError(0, "WeightError", "'a' is damaged")


def grouped() -> NcclUse:
    devices, usable = zip(ONE, OTHER, strict=True)
    use = NcclUse(lambda rank: devices[rank])
    assert use.devices((0, 1), usable) == ("GPU-1", "GPU-2")
    return use


def test_three_failures_in_a_row_are_the_end_of_it() -> None:
    use = grouped()
    assert [use.failed([DEATH]), use.failed([SILENCE])] == [None, None]
    use.succeeded()
    assert [use.failed([DEATH]), use.failed([PEER]), use.failed([PEER, SILENCE])] == [None, None, PEER]
    assert not use.is_used
    assert use.devices((0, 1), (ONE[1], OTHER[1])) == ()
    assert [use.failed([DEATH]) for _ in range(4)] == [None] * 4, "what is told is told once"


def test_a_fault_of_another_kind_says_nothing_of_it() -> None:
    """Of who read a damaged version, the others hear that the connection is lost."""
    use = grouped()
    assert [use.failed([DAMAGED, PEER]) for _ in range(5)] == [None] * 5
    assert use.failed([]) is None
    assert use.is_used


def test_what_fails_without_a_group_says_nothing_of_it() -> None:
    use = grouped()
    use.ungrouped()
    assert [use.failed([DEATH]) for _ in range(5)] == [None] * 5
    assert use.devices((0, 1), (ONE[1], OTHER[1])), "the next group's is asked again"


@pytest.mark.parametrize(
    ("faults", "given_up"),
    [
        ([REFUSED, REFUSED], True),
        ([PEER, REFUSED], True),  # who failed left, and the other heard of that first
        ([PEER, PEER], False),
        ([DEATH, REFUSED], False),  # it died in the midst of the others' first sum
        ([REFUSED, SILENCE], False),
        ([], False),
    ],
)
def test_it_is_given_up_at_once_where_all_were_there_and_it_does_not_work(
    faults: list[Exception], given_up: bool
) -> None:
    use = grouped()
    assert use.refused(faults) == (REFUSED if given_up else None)
    assert use.is_used != given_up
    assert bool(use.devices((0, 1), (ONE[1], OTHER[1]))) != given_up


def test_failures_by_gloo_say_nothing_of_it() -> None:
    use = NcclUse(lambda rank: "GPU-1")
    assert use.devices((0, 1), (["GPU-1"], ["GPU-1"])) == ()
    assert [use.failed([DEATH]) for _ in range(5)] == [None] * 5
    assert NcclUse(None).devices((0, 1), (["GPU-1"], ["GPU-2"])) == ()
