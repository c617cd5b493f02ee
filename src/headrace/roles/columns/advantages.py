"""Advantages: compares the episodes of groups, and spreads what comes out over their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from headrace.algorithms.estimate import AdvantageEstimator, Episodes
from headrace.algorithms.kl_controllers import KLCoefficient
from headrace.experience.columns import OnChosenTokens
from headrace.experience.header import longest_run
from headrace.experience.index import Sampler
from headrace.experience.leases import Lease, Row
from headrace.experience.samplers import sealed_batch, whole_groups
from headrace.roles.columns.filling import Filled, asked, by_row
from headrace.roles.columns.functions import AskedFunctions
from headrace.roles.columns.token_advantages import EpisodesOf
from headrace.roles.context import RoleContext

NAME = "advantages"


class AdvantageColumns:
    """Waits for what it reads by column readiness alone: one group at a time, or the sealed batch. See `Computed`."""

    name = NAME

    def __init__(
        self,
        context: RoleContext,
        estimator: AdvantageEstimator,
        functions: AskedFunctions,
        coefficient: KLCoefficient,
        *,
        moves: bool = False,
        whole_batch: bool = False,
    ) -> None:
        """`functions`: whom to ask for what looks at tokens. `coefficient`: of a KL in the reward. `moves`: it follows
        the KL of each whole batch."""
        self._context = context
        self._estimator = estimator
        self._functions = functions
        self._coefficient = coefficient
        self._moves = moves and whole_batch
        self._whole_batch = whole_batch
        self.sampler: Sampler = sealed_batch(context.flow) if whole_batch else whole_groups
        self.waits_for = "rows of the sealed batch" if whole_batch else "kept groups"

    def begin_again(self) -> None:
        """The KL's coefficient goes back with the checkpoint."""

    async def compute(self, lease: Lease) -> Filled:
        """See `Computed.compute`. Where rewards and lengths alone are compared, no token is looked at. Raises
        PieceError."""
        rows = list(lease.rows)
        if self._estimator.is_of_episodes:
            return Filled(by_row(rows, {"advantages": self._by_episode(rows)}))
        batch, own = self._context.flow.batch, self._coefficient
        beta = own.of(batch) if self._whole_batch else own.value
        asking = self._functions.advantages(rows, beta, moves=self._moves)
        found = await asked(self._context, asking, "advantages")
        following = found.coefficient
        if following is None:
            return Filled(by_row(rows, found.columns))
        return Filled(by_row(rows, found.columns), partial(own.take, batch, following))

    def _by_episode(self, rows: Sequence[Row]) -> list[OnChosenTokens]:
        episodes = EpisodesOf(rows)
        lengths = torch.zeros(len(episodes.rewards), dtype=torch.float64)
        own = torch.tensor([row.header.response_tokens for row in rows], dtype=torch.float64)
        lengths.index_add_(0, episodes.of_row, own)
        longest = torch.tensor([float(longest_run(row.header.spans)) for row in rows], dtype=torch.float64)
        turns = torch.zeros_like(lengths).scatter_reduce(0, episodes.of_row, longest, "amax")
        found = self._estimator.of_episodes(Episodes(episodes.rewards, episodes.groups, lengths, turns))
        return [OnChosenTokens(value) for value in found[episodes.of_row].tolist()]
