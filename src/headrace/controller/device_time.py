"""Shares out what models computed among the devices that they are on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence


class DeviceTime:
    """What somebody computed since the last look was where it was then; of whoever is new, where it is now."""

    def __init__(self, seconds: Callable[[], Mapping[str, float]], devices: Callable[[str], Sequence[str]]) -> None:
        """`seconds` that each has computed since this was made, by who; none falls. `devices`: the names of those that
        one is on; each of several is busy while it computes."""
        self._seconds = seconds
        self._devices = devices
        self._on: dict[str, Sequence[str]] = {}
        self._known: dict[str, float] = {}
        self._totals: dict[str, float] = {}

    def look(self) -> None:
        """To be called when somebody may be about to move."""
        for who, seconds in self._seconds().items():
            if not seconds:
                continue  # nothing is to be shared out, and where it is may not be known
            devices = self._devices(who)
            for device in self._on.get(who, devices):
                self._totals[device] = self._totals.get(device, 0.0) + seconds - self._known.get(who, 0.0)
            self._on[who], self._known[who] = devices, seconds

    def totals(self) -> dict[str, float]:
        """By device, the seconds of all that were on it, added up: more than have passed where several computed at the
        same time. Nothing of one on which nobody has computed."""
        self.look()
        return {device: seconds for device, seconds in self._totals.items() if seconds > 0}
