"""A scorer: fills columns of the rows that are ready, as a model sees their tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headrace.experience.index import Row, RowId
from headrace.experience.loader import row_length
from headrace.experience.samplers import token_budget, whole_groups
from headrace.models.packing import MicroBatch, PackRow, pack, plan_microbatches
from headrace.roles.context import RoleContext
from headrace.runtime.signal import Signal
from headrace.weights.plane import WeightReceiver

Score = Callable[[MicroBatch], Tensor]
"""[N] float32, 0 outside the mask; or [N, 2], whose second column has what is of the whole sample at its last token."""


class FollowedWeights:
    """The weights of a model that takes the policy's versions, as they are published."""

    def __init__(
        self,
        context: RoleContext,
        receiver: WeightReceiver,
        published: Signal,
        take: Callable[[Mapping[str, Tensor]], None],
        *,
        lane: str,
        loaded: int | None,
    ) -> None:
        """`take` loads them, on `lane`. `loaded`: number of the version that the model has, if it is one of the run."""
        self._context = context
        self._receiver = receiver
        self._published = published
        self._take = take
        self._lane = lane
        self._loaded = loaded

    async def reach(self, number: int) -> None:
        """Have version `number`, which is about to be published if it is not. Raises WaitTimeout, WeightError."""
        if self._loaded == number:
            return
        context = self._context

        def is_there() -> bool:
            latest = self._receiver.latest()
            return latest is not None and latest.number >= number

        await self._published.wait_until(
            is_there,
            context.runtime.clock,
            context.stall_timeout_s,
            lambda: f"version {number} to be published, for lane {self._lane}",
        )
        await context.compute(self._lane, "new weights", self._receive)

    def _receive(self) -> None:
        manifest, tensors = self._receiver.receive()
        self._take(tensors)
        self._loaded = manifest.version.number


class ScorerRole:
    """Reference, proximal, teacher, and the critic's values: each a consumer of its own, on a lane of its own."""

    def __init__(
        self,
        context: RoleContext,
        *,
        name: str,
        columns: Sequence[str],
        lane: str,
        score: Score,
        max_tokens: int,
        reads: Sequence[str] = (),
        follows: FollowedWeights | None = None,
        by_group: bool = False,
    ) -> None:
        """`name`: of the stage. `columns`: that it writes, one of the tokens and with [N, 2] one of the sample.
        `reads`: columns that `score` finds in the micro-batch, beside tokens and mask. `max_tokens`: budget of one
        forward pass; a longer row is one of its own. `follows`: the weights must be those that the batch begins with.
        `by_group`: rows of different groups never share a pass, so that no score depends on which groups came
        together."""
        self._reads = tuple(reads)
        self._follows = follows
        self._context = context
        self._name = name
        self._columns = tuple(columns)
        self._lane = lane
        self._score = score
        self._max_tokens = max_tokens
        self._sampler = whole_groups if by_group else token_budget(max_tokens, row_length)

    async def run(self) -> None:
        table = self._context.table
        async for lease in self._context.leases(self._name, self._sampler, "kept groups"):
            rows = list(lease.rows)
            table.hold(lease)
            if self._follows is not None:
                await self._follows.reach(self._context.flow.batch)
            of_row: dict[RowId, tuple[Any, ...]] = {}
            for places in plan_microbatches([row_length(row) for row in rows], self._max_tokens):
                of_row |= await self._scores([rows[place] for place in places])
            # Rows of a group that was dropped meanwhile have left the lease.
            there = [row.row_id for row in lease.rows]
            for place, column in enumerate(self._columns):
                table.write(there, column, [of_row[row_id][place] for row_id in there], lease)
            table.ack(lease)

    async def _scores(self, rows: Sequence[Row]) -> dict[RowId, tuple[Any, ...]]:
        """The columns of each, from one forward pass."""
        micro = pack([self._pack_row(row) for row in rows])
        values = await self._context.compute(self._lane, f"scores of {self._name}", self._score, micro)
        parts = np.split(values.numpy(), np.cumsum([row_length(row) for row in rows])[:-1])
        return {row.row_id: _of_columns(part) for row, part in zip(rows, parts, strict=True)}

    def _pack_row(self, row: Row) -> PackRow:
        given = {name: row.columns[name] for name in self._reads}
        return PackRow(row.columns["tokens"], row.columns["loss_mask"], given, row.columns["kept_sets"])


def _of_columns(part: NDArray[np.float32]) -> tuple[Any, ...]:
    """A row's columns from [T], or [T, 2]."""
    return (part,) if part.ndim == 1 else (part[:, 0].copy(), float(part[-1, 1]))
