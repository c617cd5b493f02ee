"""Replay: hands over recorded groups in the place of the rollout, as the gate lets them."""

from __future__ import annotations

import asyncio

import numpy as np
from numpy.typing import NDArray

from headrace.experience.recorded import RecordedRollouts
from headrace.experience.sample import GroupKey
from headrace.roles.batch_stats import FreshRule
from headrace.roles.context import RoleContext
from headrace.weights.version import Lineage

NAME = "replay"
LANE = "record"


class ReplayRole:
    def __init__(self, context: RoleContext, rollouts: RecordedRollouts) -> None:
        self._context = context
        self._rollouts = rollouts

    async def run(self) -> None:
        """Until the run is finished. Raises RunDamaged, ConfigError for what cannot be trained on."""
        flow = self._context.flow
        while not flow.is_finished:
            keys: list[GroupKey] = []
            while (admission := flow.admit(0)) is not None:
                keys.append(admission.key)
            groups = [await self._context.compute(LANE, "the record", self._rollouts.group, key) for key in keys]
            # Together, so that they share the journal's fsync.
            await asyncio.gather(*(flow.finish(group) for group in groups))
            if keys:
                continue
            if not flow.is_finished:
                await self._context.changed(NAME, "the gate")


class RecordedLineage(Lineage):
    """Nothing that another run sampled is of this run's versions, and none of it was taken back."""

    def lost(self, branches: NDArray[np.int32], versions: NDArray[np.int32]) -> NDArray[np.bool_]:
        return np.zeros(len(branches), np.bool_)


class NeverFresh(FreshRule):
    """No recorded token is known to be of the weights that a batch begins with: what the trainer's log-probs differ by
    is drift, all of it."""

    def tokens(self, batch: int, versions: NDArray[np.int32], branches: NDArray[np.int32]) -> NDArray[np.bool_]:
        return np.zeros(len(versions), np.bool_)
