"""Advantages: compares the episodes of a group, and spreads what comes out over their tokens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from headrace.experience.index import Row
from headrace.experience.samplers import whole_groups
from headrace.roles.context import RoleContext

NAME = "advantages"

Estimator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(rewards [S], group_index [S]) to advantages [S]."""


class AdvantagesRole:
    def __init__(self, context: RoleContext, estimator: Estimator) -> None:
        self._context = context
        self._estimator = estimator

    async def run(self) -> None:
        async for lease in self._context.leases(NAME, whole_groups, "kept groups"):
            values = self._of_rows(lease.rows)
            columns = [
                np.full(len(row.columns["tokens"]), value, dtype=np.float32)
                for row, value in zip(lease.rows, values, strict=True)
            ]
            self._context.table.write([row.row_id for row in lease.rows], "advantages", columns, lease)
            self._context.table.ack(lease)

    def _of_rows(self, rows: list[Row]) -> list[float]:
        """One value a row. The baseline is taken over episodes: an episode of several samples counts once."""
        rewards = {row.columns["episode"]: row.columns["reward"] for row in rows}
        episodes = {episode: place for place, episode in enumerate(rewards)}
        advantages = self._estimator(
            torch.tensor(list(rewards.values()), dtype=torch.float64),
            torch.zeros(len(rewards), dtype=torch.int64),
        )
        return [float(advantages[episodes[row.columns["episode"]]]) for row in rows]
