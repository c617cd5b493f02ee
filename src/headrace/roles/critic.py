"""The critic: trained beside the actor on the same batches, from its own optimiser."""

from __future__ import annotations

from contextlib import suppress

from headrace.experience.index import StaleLease
from headrace.experience.loader import StreamingLoader
from headrace.experience.table import Lease
from headrace.models.packing import PackRow, pack, pack_updates
from headrace.roles.batch_stats import StalenessRule
from headrace.roles.context import RoleContext
from headrace.runtime.signal import Signal
from headrace.training.protocol import StepReport, Trainer

NAME = "critic.update"
CRITIC_LANE = "critic"
_PASS = "a micro-batch of the critic"
_COLUMNS = ("values", "returns")


class CriticRole:
    """Accumulates a batch as its rows become ready, and steps when the actor says so: the two commit it together."""

    def __init__(
        self,
        context: RoleContext,
        loader: StreamingLoader,
        trainer: Trainer,
        rule: StalenessRule,
        *,
        updates: int,
        max_tokens: int,
    ) -> None:
        """`rule` says which samples are left out; tokens of any age teach the critic. `updates`: optimiser steps on a
        batch; with more than one `loader` waits for all of it, and micro-batches of `max_tokens` are made anew for
        each."""
        self._context = context
        self._rule = rule
        self._updates = updates
        self._max_tokens = max_tokens
        self._rows: list[PackRow] = []
        """Kept only when several steps are made on them."""
        self._loader = loader
        self._trainer = trainer
        self._changed = Signal()
        self._whole: int | None = None
        """The batch that is accumulated whole."""
        self._leases: list[Lease] = []

    async def run(self) -> None:
        """Batch after batch until the run is finished."""
        flow = self._context.flow
        while not flow.is_finished:
            batch = flow.batch
            if not await self._accumulate(batch):
                continue
            self._whole = batch
            self._changed.notify()
            while flow.batch == batch and not flow.is_finished:
                await self._context.changed(NAME, "the actor's step")

    async def step(self, batch: int) -> tuple[StepReport, ...]:
        """The optimiser steps on `batch`, once all of it is there. Raises WaitTimeout."""
        clock, seconds = self._context.runtime.clock, self._context.stall_timeout_s
        await self._changed.wait_until(
            lambda: self._whole == batch, clock, seconds, lambda: f"the critic to see all rows of batch {batch}"
        )
        compute = self._context.compute
        reports = []
        if self._updates == 1:
            reports.append(await compute(CRITIC_LANE, "the critic's step", self._trainer.step))
        else:
            for micros in pack_updates(self._rows, self._updates, self._max_tokens):
                for micro in micros:
                    await compute(CRITIC_LANE, _PASS, self._trainer.accumulate, micro)
                reports.append(await compute(CRITIC_LANE, "the critic's step", self._trainer.step))
        self._context.table.ack(*self._leases)
        self._leases, self._rows, self._whole = [], [], None
        return tuple(reports)

    async def _accumulate(self, batch: int) -> bool:
        """False if a row was lost, and the batch must begin again."""
        table, compute = self._context.table, self._context.compute
        try:
            async for lease in self._loader.micro_batches(batch):
                self._leases.append(lease)
                table.hold(*self._leases)
                rows = [
                    PackRow(row.columns["tokens"], self._rule.chosen(row), {c: row.columns[c] for c in _COLUMNS})
                    for row in lease.rows
                ]
                if self._updates == 1:
                    await compute(CRITIC_LANE, _PASS, lambda rows=rows: self._trainer.accumulate(pack(rows)))
                else:
                    self._rows.extend(rows)
        except StaleLease as lost:
            self._context.report("restarted_batch", {"role": NAME, "batch": batch, "message": str(lost)})
            await compute(CRITIC_LANE, "the critic to forget", self._trainer.discard)
            for lease in self._leases:
                with suppress(StaleLease):
                    table.give_back(lease)
            self._leases, self._rows = [], []
            return False
        return bool(self._leases)
