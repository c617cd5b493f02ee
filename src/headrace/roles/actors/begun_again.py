"""How often a batch begins again for columns that are gone."""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import HeadraceError
from headrace.runtime.protocol import Clock
from headrace.runtime.refs import RefLost
from headrace.runtime.supervision import BATCH, Measure, after_failure

_LOOK_S = 0.25


class BatchLost(HeadraceError, RuntimeError):
    """Its columns were gone each time that it began."""


class BegunAgain:
    """Counts, and pauses, longer each time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._batch = -1
        self._times = 0

    async def after(self, batch: int, lost: RefLost, until: Callable[[], bool] = lambda: False) -> None:
        """The batch is to begin again. Return after the pause, or once `until()` holds. Raises BatchLost where it did
        so too often."""
        self._times = self._times + 1 if batch == self._batch else 1
        self._batch = batch
        then = after_failure(BATCH, self._times)
        if then.measure is Measure.STOP:
            raise BatchLost(
                f"batch {batch} has begun {self._times} times, and each time columns were gone: {lost}; --resume the "
                "run from its last commit"
            ) from lost
        end = self._clock.now() + then.pause_s
        while self._clock.now() < end and not until():
            await self._clock.sleep(min(_LOOK_S, then.pause_s))
