"""Advantages: compares the episodes of groups, and spreads what comes out over their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import torch

from headrace.algorithms.estimate import AdvantageEstimator, Episodes
from headrace.algorithms.kl_controllers import KLCoefficient
from headrace.experience.columns import OnChosenTokens
from headrace.experience.index import Lease, Row, StaleLease
from headrace.experience.samplers import sealed_batch, whole_groups
from headrace.roles.abandoned import freed_if_left
from headrace.roles.context import RoleContext
from headrace.roles.functions import AskedFunctions
from headrace.roles.token_advantages import EpisodesOf
from headrace.runtime.workers import WorkerLost

NAME = "advantages"


class AdvantagesRole:
    """Waits for what it reads by column readiness alone: one group at a time, or the sealed batch."""

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
        self._sampler = sealed_batch(context.flow) if whole_batch else whole_groups
        self._what = "rows of the sealed batch" if whole_batch else "kept groups"

    async def run(self) -> None:
        """Until the run is finished. Where rewards and lengths alone are compared, no token is looked at. Raises
        PieceError."""
        table = self._context.table
        async for lease in self._context.leases(NAME, self._sampler, self._what):
            rows = list(lease.rows)
            if self._estimator.is_of_episodes:
                self._write(lease, rows, {"advantages": self._by_episode(rows)})
                continue
            table.hold(lease)
            batch = self._context.flow.batch
            beta = self._coefficient.of(batch) if self._whole_batch else self._coefficient.value
            try:
                asking = self._functions.advantages(rows, beta, moves=self._moves)
                found = await freed_if_left(self._context, asking, "advantages")
                self._write(lease, rows, found.columns)
            except (StaleLease, WorkerLost):  # with what was computed: the rows are leased again
                with suppress(StaleLease):
                    table.give_back(lease)
                continue
            if found.coefficient is not None:
                self._coefficient.take(batch, found.coefficient)

    def _write(self, lease: Lease, rows: Sequence[Row], columns: Mapping[str, Sequence[object]]) -> None:
        for name, values in columns.items():
            self._context.table.fill(lease, name, {row.row_id: v for row, v in zip(rows, values, strict=True)})
        self._context.table.ack(lease)

    def _by_episode(self, rows: Sequence[Row]) -> list[OnChosenTokens]:
        episodes = EpisodesOf(rows)
        lengths = torch.zeros(len(episodes.rewards), dtype=torch.float64)
        own = torch.tensor([row.header.response_tokens for row in rows], dtype=torch.float64)
        lengths.index_add_(0, episodes.of_row, own)
        found = self._estimator.of_episodes(Episodes(episodes.rewards, episodes.groups, lengths))
        return [OnChosenTokens(value) for value in found[episodes.of_row].tolist()]
