"""Replay: hands over recorded groups in the place of the rollout, as the gate lets them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from headrace.experience.flow import Admission
from headrace.experience.header import Span
from headrace.experience.records.group_journal import GroupJournal
from headrace.experience.records.recorded import RecordedRollouts
from headrace.roles.actors.batch_stats import FreshRule
from headrace.roles.context import RoleContext
from headrace.weights.version import Lineage

NAME = "replay"
LANE = "record"


class ReplayRole:
    def __init__(self, context: RoleContext, rollouts: RecordedRollouts, journal: GroupJournal) -> None:
        self._context = context
        self._journal = journal
        self._rollouts = rollouts

    async def run(self) -> None:
        """Until the run is finished. Raises RunDamaged, ConfigError for what cannot be trained on."""
        flow = self._context.flow
        while not flow.is_finished:
            admitted: list[Admission] = []
            while (admission := flow.admit(0)) is not None:
                admitted.append(admission)
            # Together, so that they share the journal's fsync.
            await asyncio.gather(*map(self._hand_over, admitted))
            if admitted:
                continue
            if not flow.is_finished:
                await self._context.changed(NAME, "the gate")

    async def _hand_over(self, admission: Admission) -> None:
        group = await self._context.compute(LANE, "the record", self._rollouts.group, admission.key)
        group = replace(group, issue=admission.issue)
        self._context.flow.finish(*await self._journal.write(group))


class RecordedLineage(Lineage):
    """Nothing that another run sampled is of this run's versions, and none of it was taken back."""

    def lost(self, branch: int, number: int) -> bool:
        return False


class NeverFresh(FreshRule):
    """No recorded token is known to be of the weights that a batch begins with: what the trainer's log-probs differ by
    is drift, all of it."""

    def tokens(self, batch: int, spans: Sequence[Span]) -> tuple[Span, ...]:
        return ()
