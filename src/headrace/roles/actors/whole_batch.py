"""A batch that is all there, in training: every optimiser step of every epoch over it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.models.packing import plan_microbatches
from headrace.runtime.refs import Ref
from headrace.training.epochs import Epochs
from headrace.training.protocol import StepReport


@dataclass(frozen=True, slots=True)
class WholeBatches:
    """How the actor trains on batches that are all there before it begins."""

    epochs: Epochs
    recompute: bool
    """Whether each row first gets the column `proximal`: log-probs under the weights that the batch begins with."""
    prepares: bool = False
    """Whether the loss needs to know something of the whole batch before the first step."""
    stop_kl: float | None = None
    """An epoch whose mean KL from the policy that the batch began with is above this is the last."""

    def enough(self, reports: Sequence[StepReport]) -> bool:
        """Whether an epoch with these reports is the batch's last."""
        tokens = sum(report.trained_tokens for report in reports)
        moved = sum(report.stats.get("step_kl", 0.0) for report in reports)
        return self.stop_kl is not None and moved > self.stop_kl * tokens


class Holder(Protocol):
    """A trainer that holds the rows of the batch; see `TrainerGroup`."""

    async def score_held(self, places: Sequence[int]) -> None: ...

    async def prepare_held(self) -> None: ...

    async def accumulate_held(self, places: Sequence[int]) -> None: ...

    async def remember(self) -> None: ...

    async def step(self) -> StepReport: ...

    async def let_go(self) -> Sequence[Ref | None]: ...


class Ask(Protocol):
    def __call__(self, computing: Awaitable[Any], /) -> Awaitable[Any]:
        """What the trainer computes, within the time limit of all waits."""


class WholeBatch:
    """Plans passes over rows that the trainer holds; sees their lengths alone. What is computed follows from the rows,
    their order and the seed.

    Until `finish` nothing is stepped: the batch can still be given up, and the trainer told to discard.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        batch: int,
        trainer: Holder,
        ask: Ask,
        epochs: Epochs,
        *,
        max_tokens: int,
        given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """`lengths`: tokens of the rows, in an order that does not depend on when they came. `max_tokens`: of a
        micro-batch. `given_up` is looked at before each pass until `finish`."""
        self._lengths = list(lengths)
        self._batch = batch
        self._trainer = trainer
        self._ask = ask
        self._epochs = epochs
        self._max_tokens = max_tokens
        self._given_up = given_up

    async def score(self) -> None:
        """Give every row the log-probs that it has under the present weights."""
        for places in self._micro_batches(range(len(self._lengths))):
            if self._given_up():
                return
            await self._ask(self._trainer.score_held(places))

    async def prepare(self) -> None:
        """Give the rows what the loss needs to know of all of them."""
        if not self._given_up():
            await self._ask(self._trainer.prepare_held())

    async def begin(self) -> None:
        """Accumulate the gradients of the first step."""
        for places in self._steps(0)[0]:
            if self._given_up():
                return
            await self._ask(self._trainer.accumulate_held(places))

    async def finish(
        self, enough: Callable[[Sequence[StepReport]], bool] = lambda reports: False
    ) -> tuple[tuple[StepReport, ...], ...]:
        """Make all steps, the first from what `begin` accumulated. What each epoch's steps report; an epoch of which
        `enough` is true is the last."""
        done: list[tuple[StepReport, ...]] = []
        if self._epochs.steps > 1:
            await self._ask(self._trainer.remember())
        for epoch in range(self._epochs.count):
            reports = []
            for number, step in enumerate(self._steps(epoch)):
                if epoch or number:
                    for places in step:
                        await self._ask(self._trainer.accumulate_held(places))
                reports.append(await self._ask(self._trainer.step()))
            done.append(tuple(reports))
            if enough(reports):
                break
        return tuple(done)

    async def let_go(self) -> dict[int, Ref]:
        """The trainer forgets the rows. By place, refs to the log-probs that the batch began with, as far as they are
        known."""
        found: Sequence[Ref | None] = await self._ask(self._trainer.let_go())
        return {place: ref for place, ref in enumerate(found) if ref is not None}

    def _steps(self, epoch: int) -> list[list[list[int]]]:
        """Of each step of an epoch its micro-batches."""
        shares = self._epochs.shares(len(self._lengths), self._batch, epoch)
        return [self._micro_batches(share.tolist()) for share in shares]

    def _micro_batches(self, places: Sequence[int]) -> list[list[int]]:
        plan = plan_microbatches([self._lengths[place] for place in places], self._max_tokens)
        return [[places[index] for index in part] for part in plan]
