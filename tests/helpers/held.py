"""A trainer that holds the rows of a batch, without a lane or a worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from torch import Tensor

from headrace.models.packing import MicroBatch, PackRow
from headrace.runtime.refs import Ref
from headrace.training.protocol import StepReport
from headrace.training.rows.held_rows import HeldRows


async def ask(computing: Awaitable[Any]) -> Any:
    return await computing


class Held:
    """A `Holder`."""

    def __init__(
        self,
        rows: Sequence[PackRow],
        batch: int,
        trainer: Any,
        *,
        score: Callable[[MicroBatch], Tensor] | None = None,
        column: str = "proximal",
        prepare: Callable[[Sequence[MicroBatch]], None] | None = None,
    ) -> None:
        """`score`: gives `column`; the trainer's log-probs unless given."""
        self.rows = HeldRows(rows, batch)
        self._trainer = trainer
        self._score = score
        self._column = column
        self._prepare = prepare

    async def score_held(self, places: Sequence[int]) -> None:
        self.rows.score(places, self._column, self._score or self._trainer.logprobs)

    async def prepare_held(self) -> None:
        assert self._prepare is not None
        self.rows.prepare(self._prepare)

    async def accumulate_held(self, places: Sequence[int]) -> None:
        self.rows.accumulate(self._trainer, places)

    async def remember(self) -> None:
        pass

    async def step(self) -> StepReport:
        report: StepReport = self._trainer.step()
        self.rows.stepped()
        return report

    async def let_go(self) -> Sequence[Ref | None]:
        return []
