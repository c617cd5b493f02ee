"""A batch that is all there, in training: every optimiser step of every epoch over it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headrace.models.packing import MicroBatch, PackRow, pack, plan_microbatches
from headrace.training.epochs import Epochs
from headrace.training.protocol import StepReport, Trainer


class Compute(Protocol):
    def __call__(self, function: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        """Run blocking work of the trainer where it belongs."""


class WholeBatch:
    """What is computed follows from the rows, their order and the seed alone. The rows are touched where the trainer
    computes, and nowhere else.

    Until `finish` nothing is stepped: the batch can still be given up, and the trainer told to discard.
    """

    def __init__(
        self,
        rows: Sequence[PackRow],
        batch: int,
        trainer: Trainer,
        compute: Compute,
        epochs: Epochs,
        *,
        max_tokens: int,
        given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """`rows`: in an order that does not depend on when they came. `max_tokens`: of a micro-batch. `given_up` is
        looked at before each pass until `finish`."""
        self._rows = [replace(row, columns={**row.columns, "batch": float(batch)}) for row in rows]
        self._batch = batch
        self._trainer = trainer
        self._compute = compute
        self._epochs = epochs
        self._max_tokens = max_tokens
        self._given_up = given_up

    async def score(self, name: str, function: Callable[[MicroBatch], Tensor]) -> None:
        """Add a column: what `function`, of the trainer, gives for every row under the present weights."""
        for places in self._micro_batches(range(len(self._rows))):
            if self._given_up():
                return
            await self._compute(self._score, places, name, function)

    async def prepare(self, function: Callable[[Sequence[MicroBatch]], None]) -> None:
        """Add the columns that `function` adds to the whole batch."""
        await self._compute(self._prepare, function)

    def _prepare(self, function: Callable[[Sequence[MicroBatch]], None]) -> None:
        whole = pack(self._rows)
        known = set(whole.columns)
        function([whole])
        added = {name: column for name, column in whole.columns.items() if name not in known}
        self._set(range(len(self._rows)), added)

    async def begin(self) -> None:
        """Accumulate the gradients of the first step."""
        for places in self._steps(0)[0]:
            if self._given_up():
                return
            await self._compute(self._pass, places)

    def column(self, name: str) -> list[NDArray[np.float32] | None]:
        """Of each row what it has under this name, a number a token."""
        found = (row.columns.get(name) for row in self._rows)
        return [values if isinstance(values, np.ndarray) else None for values in found]

    async def finish(
        self, enough: Callable[[Sequence[StepReport]], bool] = lambda reports: False
    ) -> tuple[tuple[StepReport, ...], ...]:
        """Make all steps, the first from what `begin` accumulated. What each epoch's steps report; an epoch of which
        `enough` is true is the last."""
        done: list[tuple[StepReport, ...]] = []
        for epoch in range(self._epochs.count):
            reports = []
            for number, step in enumerate(self._steps(epoch)):
                if epoch or number:
                    for places in step:
                        await self._compute(self._pass, places)
                reports.append(await self._compute(self._trainer.step))
            done.append(tuple(reports))
            if enough(reports):
                break
        return tuple(done)

    def _pass(self, places: Sequence[int]) -> None:
        self._set(places, self._trainer.accumulate(self._pack(places)))

    def _score(self, places: Sequence[int], name: str, function: Callable[[MicroBatch], Tensor]) -> None:
        self._set(places, {name: function(self._pack(places))})

    def _steps(self, epoch: int) -> list[list[list[int]]]:
        """Of each step of an epoch its micro-batches."""
        shares = self._epochs.shares(len(self._rows), self._batch, epoch)
        return [self._micro_batches(share.tolist()) for share in shares]

    def _micro_batches(self, places: Sequence[int]) -> list[list[int]]:
        plan = plan_microbatches([len(self._rows[place]) for place in places], self._max_tokens)
        return [[places[index] for index in part] for part in plan]

    def _pack(self, places: Sequence[int]) -> MicroBatch:
        return pack([self._rows[place] for place in places])

    def _set(self, places: Sequence[int], columns: Mapping[str, Tensor]) -> None:
        """Columns [N] over the rows at `places`, packed in that order."""
        ends = np.cumsum([len(self._rows[place]) for place in places])[:-1]
        for name, values in columns.items():
            for place, part in zip(places, np.split(values.numpy(), ends), strict=True):
                row = self._rows[place]
                self._rows[place] = replace(row, columns={**row.columns, name: part})
