"""Replicas come back that models in training go on without: see `training/absent_replicas.py`."""

from __future__ import annotations

import logging
from typing import NoReturn

from headrace.runtime.placing import NoRoom
from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.runtime.workers import WorkerError, WorkerLost
from headrace.training.group import TrainerGroup

logger = logging.getLogger(__name__)

_AGAIN_S = 15.0
"""After which room is looked for again, or one that failed as it was made is made again."""


class ReplicaBack(Exception):
    """A replica is made anew, and has no state yet: between two batches the others can take it in."""


async def replica_back(group: TrainerGroup, clock: Clock) -> NoReturn:
    """Make one again, of a group that goes on without some. Raises ReplicaBack."""
    while True:
        try:
            await group.make_again()
        except (WorkerError, WorkerLost, WaitTimeout, OSError) as error:
            if not isinstance(error.__cause__, NoRoom):
                logger.warning("a replica of the %s cannot be made anew yet: %s", group.name, error)
            await clock.sleep(_AGAIN_S)
        else:
            raise ReplicaBack(group.name)
