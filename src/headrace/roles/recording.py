"""Recording: takes batch after batch of what was generated, in the place of the actor, and trains nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack

from headrace.experience.leases import Row
from headrace.experience.loader import StreamingLoader
from headrace.experience.table import Lease
from headrace.roles.actors.batch_stats import BatchStats, StalenessRule
from headrace.roles.actors.trained_step import TrainedRow, TrainedStep
from headrace.roles.context import RoleContext
from headrace.training.protocol import StepReport
from headrace.weights.version import Lineage

NAME = "record"
_NO_STEP = StepReport(
    loss=0.0,
    grad_norm=0.0,
    lr=0.0,
    skipped=False,
    denominator=0.0,
    stats={},
    maxima={},
    forwarded_tokens=0,
    trained_tokens=0,
    padding_tokens=0,
)


class RecordingRole:
    def __init__(
        self,
        context: RoleContext,
        loader: StreamingLoader,
        lineage: Lineage,
        after_batch: Callable[[TrainedStep], Awaitable[None]],
    ) -> None:
        """`after_batch` is awaited once the batch's groups have left: the record and the commit are made there."""
        self._context = context
        self._loader = loader
        self._lineage = lineage
        self._rule = StalenessRule(bound=0, masks=False, allows_late=True)
        self._after_batch = after_batch
        self._stopping = False

    def stop(self) -> None:
        """Have `run` return before the batch that it is at."""
        self._stopping = True
        self._context.table.wake(NAME)

    async def run(self) -> None:
        """Until the run is finished or stopped. Never cancelled between a batch and its record: `stop` is how it ends
        early."""
        flow = self._context.flow
        while not (flow.is_finished or self._stopping):
            with ExitStack() as kept:
                step = await self._batch(flow.batch, kept)
                if step is not None:
                    await self._after_batch(step)

    async def _batch(self, batch: int, kept: ExitStack) -> TrainedStep | None:
        """`kept`: until it is closed, the batch's refs are there."""
        table, leases, rows, stats = self._context.table, list[Lease](), list[Row](), BatchStats()
        async for lease in self._loader.leases(batch, until=lambda: self._stopping):
            leases.append(lease)
            table.hold(lease)
            rows += lease.rows
        if self._stopping or not leases:
            for lease in leases:
                table.give_back(lease)
            return None
        for row in rows:
            stats.add(row, self._rule.trained(row.header, batch), batch, self._rule, self._lineage)
        stats.leave_untrained()
        kept.enter_context(table.keep_refs(dict.fromkeys(row.group for row in rows)))
        table.ack(*leases)
        done = self._context.flow.step()
        return TrainedStep(
            batch,
            done.groups,
            done.late_groups,
            done.dropped,
            stats,
            epochs=((_NO_STEP,),),
            train_s=0.0,
            rows=tuple(TrainedRow(row) for row in rows),
            only_recorded=True,
        )
