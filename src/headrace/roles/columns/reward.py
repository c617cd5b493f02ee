"""The reward model as a role: gives finished samples the reward that the filter and the advantages see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace.experience.failures import FailureKind
from headrace.experience.leases import Lease, Row
from headrace.experience.loader import row_length
from headrace.experience.records.restored_refs import RestoredRefs
from headrace.experience.samplers import token_budget, whole_groups
from headrace.rewards.model_reward import Answered, ModelReward, answered_by_ref
from headrace.roles.columns.filling import Filled
from headrace.roles.columns.functions import LANE
from headrace.roles.context import RoleContext
from headrace.roles.known_refs import there
from headrace.runtime.patience import StandStill
from headrace.runtime.refs import Ref, RefLost

NAME = "reward"


class RewardColumns:
    """Scores rows as they arrive. The samples of an episode share the score of its last one. A score that is not finite
    costs its group, never the run. See `Computed`."""

    name, waits_for = NAME, "finished groups"

    def __init__(
        self, context: RoleContext, reward: ModelReward, *, by_group: bool = False, outage: StandStill | None = None
    ) -> None:
        """`by_group`: rows of different groups never share a pass, so that no score depends on which came together.
        `outage`: in which the model is brought back, and its scores are not late."""
        self._context = context
        self._reward = reward
        self._outage = outage
        self.sampler = whole_groups if by_group else token_budget(reward.model.max_tokens, row_length)

    def begin_again(self) -> None:
        """Nothing of the model depends on the run."""

    async def compute(self, lease: Lease) -> Filled:
        """See `Computed.compute`."""
        rows = list(lease.rows)
        scored = await self._scores([self._last(row) for row in rows])
        scores = {row.row_id: score for row, score in zip(rows, scored, strict=True)}
        rewards = {row.row_id: self._reward.total(row.columns["scored"], scores[row.row_id]) for row in rows}
        # Rows of a group that was dropped, meanwhile or here, have left the lease.
        while bad := [row for row in lease.rows if rewards[row.row_id] is None]:
            words = f"the reward model scored {scores[bad[0].row_id]}, which gives no reward"
            self._context.flow.drop(bad[0].group, FailureKind.REWARD_NAN.value, words)
        return Filled({"model_score": scores, "reward": rewards})

    async def _scores(self, samples: Sequence[Answered]) -> list[float]:
        context, what = self._context, "scores of the reward model"
        try:
            return await context.computed(NAME, what, self._reward.model.scores(samples), self._outage)
        except RefLost:
            if not isinstance(context.refs, RestoredRefs):
                raise
            again = await context.compute(LANE, "lost columns", _found_again, context.refs, samples)
            return await context.computed(NAME, what, self._reward.model.scores(again), self._outage)

    def _last(self, row: Row) -> Answered:
        """The sample that the reward of the row's episode is about."""
        group = self._context.table.group(row.group)
        place = group.header.last_of(row.header.episode)
        return answered_by_ref(group.header.samples[place], group.refs[place])


def _found_again(refs: RestoredRefs, samples: Sequence[Answered]) -> list[Answered]:
    """With refs to what is there. Blocking. Raises RefLost for a column that is in no journal."""
    return [
        replace(sample, tokens=there(refs, sample.tokens)) if isinstance(sample.tokens, Ref) else sample
        for sample in samples
    ]
