"""A scorer: fills columns of the rows that are ready, as a model sees their tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from headrace.experience.index import RowId
from headrace.experience.loader import row_length
from headrace.experience.samplers import token_budget, whole_groups
from headrace.models.packing import MicroBatch, pack, plan_microbatches
from headrace.roles.context import RoleContext
from headrace.runtime.signal import Signal
from headrace.training.rows import RowToTrain, pack_row, put_each, split, whole
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
            rows = [whole(row) for row in lease.rows]
            table.hold(lease)
            if self._follows is not None:
                await self._follows.reach(self._context.flow.batch)
            of_row: dict[RowId, tuple[Any, ...]] = {}
            for places in plan_microbatches([len(row) for row in rows], self._max_tokens):
                some = [rows[place] for place in places]
                found = await self._context.compute(self._lane, f"scores of {self._name}", self._scores, some)
                of_row |= {row.row.row_id: one for row, one in zip(some, found, strict=True)}
            for place, column in enumerate(self._columns):
                table.fill(lease, column, {row_id: found[place] for row_id, found in of_row.items()})
            table.ack(lease)

    def _scores(self, rows: Sequence[RowToTrain]) -> list[tuple[Any, ...]]:
        """The columns of each, from one forward pass. On the lane."""
        refs = self._context.refs
        micro = pack([pack_row(refs, row, self._reads) for row in rows])
        parts = split(self._score(micro).numpy(), rows)
        of_tokens = put_each(refs, self._columns[0], [part if part.ndim == 1 else part[:, 0].copy() for part in parts])
        return [
            (ref,) if part.ndim == 1 else (ref, float(part[-1, 1])) for ref, part in zip(of_tokens, parts, strict=True)
        ]
