"""Whether relays speak by NCCL: from where the ends are, and from what came of it."""

from __future__ import annotations

import pytest

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


def test_three_failures_in_a_row_are_the_end_of_it() -> None:
    (devices, usable) = zip(ONE, OTHER, strict=True)
    use = NcclUse(lambda rank: devices[rank])
    assert use.devices((0, 1), usable) == ("GPU-1", "GPU-2")
    assert not any((use.failed(), use.failed()))
    use.succeeded()
    assert [use.failed(), use.failed(), use.failed()] == [False, False, True]
    assert use.devices((0, 1), usable) == ()
    assert [use.failed() for _ in range(4)] == [False] * 4, "what is told is told once"


def test_failures_by_gloo_say_nothing_of_it() -> None:
    use = NcclUse(lambda rank: "GPU-1")
    assert use.devices((0, 1), (["GPU-1"], ["GPU-1"])) == ()
    assert not any(use.failed() for _ in range(5))
    assert NcclUse(None).devices((0, 1), (["GPU-1"], ["GPU-2"])) == ()
