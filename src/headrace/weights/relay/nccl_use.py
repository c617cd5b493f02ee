"""Whether the relays of a run speak by NCCL: a state machine, fed with what they are and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from headrace.weights.relay.faults import Fault, may_be_nccl, refusal
from headrace.weights.seen import speak_by_nccl

MOST_FAULTS = 3
"""In a row: a death makes one, and whoever is tried alone after that perhaps another."""


class NcclUse:
    def __init__(self, device_of: Callable[[int], str] | None) -> None:
        """`device_of`: that of the weights of whoever a relay, by its rank, is beside (`Seen.device`); None: never."""
        self.is_used = False
        """By the group that there is, or that comes together."""
        self._device_of = device_of
        self._faults = 0

    def devices(self, ranks: Sequence[int], usable: Sequence[Collection[str]]) -> tuple[str, ...]:
        """For a new group of these relays, of each its device; none where they speak by gloo. `usable`: those by which
        each can."""
        self.is_used = False
        if self._device_of is None:
            return ()
        found = tuple(self._device_of(rank) for rank in ranks)
        self.is_used = speak_by_nccl(found, usable)
        return found if self.is_used else ()

    def ungrouped(self) -> None:
        """There is no group: what fails before the next one is not NCCL's fault."""
        self.is_used = False

    def succeeded(self) -> None:
        """A journey of the group has."""
        if self.is_used:
            self._faults = 0

    def refused(self, faults: Collection[Fault]) -> Fault | None:
        """A group did not come together, for these. That for which NCCL is given up, if it is."""
        fault = refusal(faults) if self.is_used else None
        if fault is not None:
            self._give_up()
        return fault

    def failed(self, faults: Collection[Fault]) -> Fault | None:
        """A journey has, or the group did not come together, for these. One of them, if it was one time too many, and
        NCCL is given up: what fails again and again is not tried for ever."""
        if not self.is_used or not faults or not may_be_nccl(faults):
            return None
        self._faults += 1
        if self._faults < MOST_FAULTS:
            return None
        self._give_up()
        return next(iter(faults))

    def _give_up(self) -> None:
        self._device_of = None
        self.is_used = False
