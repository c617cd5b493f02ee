"""Whether the relays of a run speak by NCCL: a state machine, fed with what they are and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from headrace.weights.seen import speak_by_nccl

MOST_FAULTS = 3
"""In a row: a death makes one, and whoever is tried alone after that perhaps another."""


class NcclUse:
    def __init__(self, device_of: Callable[[int], str] | None) -> None:
        """`device_of`: that of the weights of whoever a relay, by its rank, is beside (`Seen.device`); None: never."""
        self.is_used = False
        """By the group that was formed last."""
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

    def succeeded(self) -> None:
        """A journey of the group has."""
        if self.is_used:
            self._faults = 0

    def failed(self) -> bool:
        """A journey has, or the group did not come together. Whether that was one time too many, and it is given up."""
        if not self.is_used or self._device_of is None:
            return False
        self._faults += 1
        if self._faults < MOST_FAULTS:
            return False
        self.give_up()
        return True

    def give_up(self) -> None:
        """What fails again and again is not tried for ever."""
        self._device_of = None
