"""A worker that is lost before the run is under way: made anew, a few times."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.runtime.placing import NoRoom
from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.runtime.supervision import START, Measure, after_failure
from headrace.runtime.workers import WorkerLost

T = TypeVar("T")

logger = logging.getLogger(__name__)


async def anew_if_lost(
    attempt: Callable[[int], Awaitable[T]], clock: Clock, is_mended: Callable[[WorkerLost], bool] = lambda lost: True
) -> T:
    """What `attempt` gives, told how often a worker was lost in it so far: another follows after a pause. `is_mended`:
    whether another attempt makes anew who was lost. Raises what it raises, and WorkerLost where that is so each time,
    or where it was waited for long: for room, or for a worker that was not made in time."""
    losses = 0
    while True:
        try:
            return await attempt(losses)
        except WorkerLost as lost:
            if isinstance(lost.__cause__, NoRoom | WaitTimeout) or not is_mended(lost):
                raise
            losses += 1
            following = after_failure(START, losses)
            if following.measure is Measure.STOP:
                reason = f"{lost.reason} (lost {losses} times at its start)"
                raise WorkerLost(lost.rank, reason, worker=lost.worker) from lost
            logger.warning("%s; it is made anew", lost)
            await clock.sleep(following.pause_s)
