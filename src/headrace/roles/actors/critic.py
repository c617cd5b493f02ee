"""The critic: trained beside the actor on the same batches, from its own optimiser."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from headrace.experience.leases import StaleLease
from headrace.experience.loader import StreamingLoader
from headrace.experience.table import Lease
from headrace.models.packing import plan_microbatches
from headrace.roles.actors.batch_stats import StalenessRule
from headrace.roles.actors.begun_again import BegunAgain
from headrace.roles.actors.call_size import CallSize, in_one_call
from headrace.roles.actors.whole_batch import WholeBatch
from headrace.roles.context import RoleContext
from headrace.roles.known_refs import with_known_refs
from headrace.roles.turns import NoTurns, Turns
from headrace.runtime.refs import RefLost
from headrace.runtime.signal import Signal
from headrace.training.epochs import Epochs
from headrace.training.group import TrainerGroup
from headrace.training.protocol import StepReport
from headrace.training.rows.packed_rows import RowToTrain, to_train
from headrace.training.rows.spans import SPANNED

T = TypeVar("T")

NAME = "critic.update"
CRITIC_LANE = "critic"
_READ = (*SPANNED, "values", "returns")


class CriticRole:
    """Accumulates the first step on a batch as soon as it can, and steps when the actor says so: the two commit it
    together."""

    def __init__(
        self,
        context: RoleContext,
        loader: StreamingLoader,
        trainer: TrainerGroup,
        rule: StalenessRule,
        *,
        max_tokens: int,
        epochs: Epochs | None = None,
        turns: Turns = NoTurns(),  # noqa: B008 (stateless)
    ) -> None:
        """`rule` says which samples are left out; tokens of any age teach the critic. `max_tokens`: of a micro-batch.
        `epochs`: over whole batches, each of which `loader` hands out in one lease; None: one step, from micro-batches
        as they come."""
        self._context = context
        self._rule = rule
        self._loader = loader
        self._trainer = trainer
        self._max_tokens = max_tokens
        self._epochs = epochs
        self._turns = turns
        self._changed = Signal()
        self._call_size = CallSize()
        self._begun_again = BegunAgain(context.runtime.clock)
        self._begun: int | None = None
        """The batch of which all rows are there, and the first step is accumulated."""
        self._whole: WholeBatch | None = None
        self._leases: list[Lease] = []
        self._has_lost_rows = False
        """After all of them were there."""

    def begin_again(self) -> None:
        """It has ended, and the trainer is back at a commit: `run` goes on from there."""
        self._begun, self._whole, self._leases, self._has_lost_rows = None, None, [], False

    async def run(self) -> None:
        """Batch after batch until the run is finished."""
        flow = self._context.flow
        while not flow.is_finished:
            batch = flow.batch
            if not await self._accumulate(batch):
                continue
            self._begun = batch
            self._changed.notify()
            while flow.batch == batch and not (self._has_lost_rows or flow.is_finished):
                await self._context.changed(NAME, "the actor's step")

    async def ready(self, batch: int, until: Callable[[], bool] = lambda: False) -> None:
        """Return once the gradients of the first step on `batch` are whole, or `until()` holds (looked at whenever
        `wake` is called). Nothing is stepped, and either may still give up. Raises WaitTimeout."""
        clock, seconds = self._context.runtime.clock, self._context.stall_timeout_s
        await self._changed.wait_until(
            lambda: self._holds(batch) or until(),
            clock,
            seconds,
            lambda: f"the critic to see all rows of batch {batch}",
        )

    @property
    def leases(self) -> Sequence[Lease]:
        """Of the batch that is `ready`."""
        return tuple(self._leases)

    def wake(self) -> None:
        """Have `ready` look at its condition again."""
        self._changed.notify()

    async def step(self, batch: int) -> tuple[StepReport, ...]:
        """All optimiser steps on `batch`, which is `ready`. From here on there is no way back but to the commit."""
        assert self._begun == batch, f"the critic is not ready for batch {batch}"
        if self._whole is None:
            reports = [await self._ask(self._trainer.step())]
        else:
            reports = [report for epoch in await self._whole.finish() for report in epoch]
            await self._whole.let_go()
        self._context.table.ack(*self._leases)
        self._leases, self._whole, self._begun = [], None, None
        return tuple(reports)

    def _holds(self, batch: int) -> bool:
        """Whether all is accumulated, and no row of it was lost meanwhile: else the batch begins again."""
        if self._begun != batch:
            return False
        try:
            self._context.table.hold(*self._leases)
        except StaleLease:
            self._begun, self._has_lost_rows = None, True
            self._context.flow.changed.notify()
            return False
        return True

    async def _accumulate(self, batch: int) -> bool:
        """False if a row was lost, and the batch must begin again."""
        table = self._context.table
        if self._has_lost_rows:
            self._has_lost_rows = False
            await self._forget("a lease has ended while the actor was waited for", batch)
        try:
            async for lease in self._loader.leases(batch):
                self._leases.append(lease)
                table.hold(lease)
                await self._turns.of_batch()
                await self._begin(batch, [to_train(row, self._rule.chosen(row.header), _READ) for row in lease.rows])
        except (StaleLease, RefLost) as lost:
            await self._forget(str(lost), batch)
            if isinstance(lost, RefLost):
                await self._begun_again.after(batch, lost)
            return False
        return bool(self._leases)

    async def _forget(self, why: str, batch: int) -> None:
        """The gradients; rows that are still ours go back."""
        self._context.report("restarted_batch", {"role": NAME, "batch": batch, "message": why})
        await self._ask(self._trainer.discard())
        for lease in self._leases:
            with suppress(StaleLease):
                self._context.table.give_back(lease)
        self._leases, self._whole = [], None

    async def _begin(self, batch: int, rows: Sequence[RowToTrain]) -> None:
        """Gradients of the first step. With whole batches, `rows` are all of one."""
        if self._epochs is None:
            plan = plan_microbatches([len(row) for row in rows], self._max_tokens)
            for micros in self._call_size.calls(plan):
                await in_one_call(self._context, self._call_size, rows, micros, self._pass)
            return

        async def hold(known: Sequence[RowToTrain]) -> None:
            await self._ask(self._trainer.hold(batch, known))

        await with_known_refs(self._context, rows, hold)
        self._whole = WholeBatch(
            [len(row) for row in rows], batch, self._trainer, self._ask, self._epochs, max_tokens=self._max_tokens
        )
        await self._whole.begin()

    async def _pass(self, micros: list[list[RowToTrain]]) -> None:
        await self._ask(self._trainer.accumulate(micros))

    async def _ask(self, computing: Awaitable[T]) -> T:
        return await self._context.computed(CRITIC_LANE, "the critic", computing)
