"""The version that an engine of this process holds: who pins it, and what may take its place.

Invariant: while anybody has a pin, the version stays.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.engines.protocol import VersionHeld
from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.runtime.signal import Signal
from headrace.weights.plane import WeightError
from headrace.weights.version import Version

_RELEASE_S = 3600.0
"""In which those who pin a version let it go."""


class Pin:
    """See `PinnedVersion`."""

    is_lost = False

    def __init__(self, version: Version, release: Callable[[], None]) -> None:
        """`release` is called once."""
        self.version = version
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


class Pins:
    """Those on the version that an engine holds. False where there are none."""

    def __init__(self, changed: Signal, released: Callable[[], None] = lambda: None) -> None:
        """`changed`: of the engine, which notifies it when it dies; notified as well once a pin was released, after
        `released` was called."""
        self._count = 0
        self._changed = changed
        self._released = released

    def __len__(self) -> int:
        return self._count

    def pin(self, version: Version) -> Pin:
        self._count += 1
        return Pin(version, self._release)

    async def all_released(self, clock: Clock, version: Version, then: str, is_dead: Callable[[], bool]) -> None:
        """Wait until no pin is left on `version`, or the engine is dead. `then`: what it is, in words, once they are
        gone. Raises WaitTimeout."""
        """Raises VersionHeld."""
        try:
            await self._changed.wait_until(
                lambda: not self._count or is_dead(),
                clock,
                _RELEASE_S,
                lambda: f"{self._count} pins on version {version} to be released before it is {then}",
            )
        except WaitTimeout as late:
            raise VersionHeld(late.so_far) from late

    def _release(self) -> None:
        self._count -= 1
        self._released()
        self._changed.notify()


def is_to_take(offered: Version | None, held: Version, *, anew: bool) -> bool:
    """Whether an engine that has `held` is to take what is offered; `anew`: be it the same. Raises WeightError."""
    if offered is None or (offered == held and not anew):
        return False
    if offered.branch < held.branch:
        raise WeightError(
            f"publication {offered} is of branch {offered.branch}, which was left: "
            f"the engine holds {held}; publish on the new branch"
        )
    if offered < held:
        raise WeightError(f"publication {offered} is older than {held}, which the engine holds; publish a newer one")
    return True
