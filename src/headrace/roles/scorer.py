"""A scorer: fills one column of the rows that are ready, as a model sees their tokens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headrace.experience.loader import row_length
from headrace.experience.samplers import token_budget
from headrace.models.packing import MicroBatch, PackRow, pack
from headrace.roles.context import RoleContext

Score = Callable[[MicroBatch], Tensor]
"""[N] float32, 0 outside the mask."""


class ScorerRole:
    """Reference, teacher, and the critic's values: each an own consumer, on a lane of its own, at its own pace."""

    def __init__(
        self, context: RoleContext, *, name: str, column: str, lane: str, score: Score, max_tokens: int
    ) -> None:
        """`name`: of the stage. `max_tokens`: budget of one forward pass; a longer row is one of its own."""
        self._context = context
        self._name = name
        self._column = column
        self._lane = lane
        self._score = score
        self._sampler = token_budget(max_tokens, row_length)

    async def run(self) -> None:
        table = self._context.table
        async for lease in self._context.leases(self._name, self._sampler, "kept groups"):
            rows = list(lease.rows)
            table.hold(lease)
            micro = pack([PackRow(row.columns["tokens"], row.columns["loss_mask"]) for row in rows])
            values = await self._context.runtime.compute(self._lane, self._score, micro)
            parts = np.split(values.numpy(), np.cumsum([row_length(row) for row in rows])[:-1])
            columns: dict[int, NDArray[np.float32]] = {row.row_id: part for row, part in zip(rows, parts, strict=True)}
            # Rows of a group that was dropped meanwhile have left the lease.
            there = [row.row_id for row in lease.rows]
            table.write(there, self._column, [columns[row_id] for row_id in there], lease)
            table.ack(lease)
