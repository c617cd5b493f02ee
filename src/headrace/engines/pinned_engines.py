"""Engines that an evaluation holds at one version."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.engines.member import Member
from headrace.engines.place import Place
from headrace.engines.protocol import PinnedVersion
from headrace.runtime.signal import Signal


class PinnedEngines:
    def __init__(self, members: Sequence[Member], look: Callable[[], None], changed: Signal) -> None:
        """All have the same version. `look` notices which have died; `changed` is notified once they are released."""
        self._members = list(members)
        self._look = look
        self._changed = changed
        self._engines = [member.engine for member in self._members]
        self._held: list[PinnedVersion] = [engine.pin() for engine in self._engines]
        self._pins = list(self._held)
        for member in self._members:
            member.pins += 1
        self.version = self._pins[0].version
        self.place = Place(self.version, only=tuple(member.index for member in self._members))

    @property
    def is_lost(self) -> bool:
        """Each of them has died, was taken out of the run, or has another version."""
        self._look()
        return all(
            not member.is_up
            or member.engine is not engine
            or engine.failure is not None
            or engine.version != self.version
            or pin.is_lost
            for member, engine, pin in zip(self._members, self._engines, self._held, strict=True)
        )

    def release(self) -> None:
        """Idempotent."""
        pins, self._pins = self._pins, []
        for pin, member in zip(pins, self._members, strict=False):
            member.pins -= 1
            pin.release()
        if pins:
            self._changed.notify()
