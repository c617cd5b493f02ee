"""The actor: trains the policy on batch k as its rows become ready, and publishes version k + 1."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headrace.experience.leases import Row, StaleLease
from headrace.experience.loader import StreamingLoader
from headrace.experience.table import Lease
from headrace.models.packing import PackRow, plan_microbatches
from headrace.observe import spent
from headrace.roles.abandoned import freed_if_left
from headrace.roles.actors.batch_stats import BatchStats, FreshRule, StalenessRule
from headrace.roles.actors.begun_again import BegunAgain
from headrace.roles.actors.call_size import CallSize, in_one_call
from headrace.roles.actors.critic import CriticRole
from headrace.roles.actors.trained_step import TrainedRow, TrainedStep
from headrace.roles.actors.whole_batch import WholeBatch, WholeBatches
from headrace.roles.context import RoleContext
from headrace.roles.known_refs import with_known_refs
from headrace.roles.turns import NoTurns, Turns
from headrace.roles.weight_distributor import WeightDistributor
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.signal import Signal
from headrace.runtime.workers import WorkerLost
from headrace.training.gap import Gap
from headrace.training.group import TrainerGroup
from headrace.training.protocol import StepReport
from headrace.training.rows.packed_rows import RowToTrain, to_train
from headrace.training.rows.spans import SPANNED
from headrace.weights.version import Lineage, Version

T = TypeVar("T")

NAME = "actor"
TRAINER_LANE = "trainer"


async def nothing() -> None:
    """Whatever is waited for is there."""


class ActorRole:
    def __init__(
        self,
        context: RoleContext,
        loader: StreamingLoader,
        trainer: TrainerGroup,
        published: Signal,
        lineage: Lineage,
        rule: StalenessRule,
        fresh: FreshRule,
        *,
        columns: Sequence[str],
        max_tokens_per_microbatch: int,
        whole: WholeBatches | None,
        critic: CriticRole | None = None,
        warm_up_batches: int = 0,
        gap_rows: Callable[[int], Sequence[PackRow]] = lambda batch: (),
        coefficient: Callable[[], float | None] = lambda: None,
        trained: Callable[[int, Sequence[StepReport], BatchStats], Awaitable[None]] | None = None,
        after_step: Callable[[TrainedStep], Awaitable[None]],
        settled: Callable[[], Awaitable[None]] = nothing,
        turns: Turns = NoTurns(),  # noqa: B008 (stateless)
    ) -> None:
        """`columns`: of the table, beside tokens and mask, that the loss reads. `whole`: how a whole batch is trained;
        None: one step, from micro-batches as they come. `critic`: steps along with every batch; in the first
        `warm_up_batches` it alone does. `gap_rows`: see `GapSampler.rows`. `coefficient`: of a KL in the loss, if that
        moves. `trained` is awaited after the steps on a
        batch, with what those of its first epoch report, before the next batch can be sealed: what goes with the
        weights is as it was then. `after_step` is awaited once there is a copy of the new version, which is on its
        way: the record is made there, a checkpoint begun, and the trainer's turn ends, if it has one of `turns`. Where
        the trainer is lost in it, it is awaited again. `settled` is awaited at the end of `run`, until what
        `after_step` began has ended."""
        self._context = context
        self._loader = loader
        self._trainer = trainer
        self._weights = WeightDistributor(context, trainer, published, failed=self.stop)
        self._lineage = lineage
        self._rule = rule
        self._fresh = fresh
        self._columns = tuple(columns)
        self._max_tokens = max_tokens_per_microbatch
        self._whole = whole
        self._recomputes = "proximal" in self._columns or (whole is not None and whole.recompute)
        self._critic = critic
        self._warm_up = warm_up_batches
        self._gap_rows = gap_rows
        self._coefficient = coefficient
        self._trained = trained
        self._after_step = after_step
        self._settled = settled
        self._turns = turns
        self._stopping = False
        self._train_s = 0.0
        self._call_size = CallSize()
        self._begun_again = BegunAgain(context.runtime.clock)
        self._made: tuple[TrainedStep, ExitStack] | None = None
        """A batch that is trained, whose version is not published, or which is not recorded yet; and its refs."""

    def stop(self) -> None:
        """Have `run` return before the batch that it is at; what was accumulated of it is forgotten."""
        self._stopping = True
        self._context.table.wake(NAME)
        self._turns.look()
        if self._critic is not None:
            self._critic.wake()

    async def begin_again(self) -> None:
        """It has ended, and the trainer is back at a commit, which is published: `run` goes on from there."""
        await self._weights.forget()
        await self._publish()
        await self._weights.settled()
        self._stopping = False

    @property
    def has_stepped(self) -> bool:
        """Whether a batch is trained that `run` has still to see through."""
        return self._made is not None

    async def go_on(self) -> None:
        """It has ended, since the trainer was lost, which has the state again that it had: `run` goes on from there.
        Its weights may leave from another place, where nothing is published yet."""
        await self._weights.forget()
        if self._made is None:  # else `run` does
            await self._publish(again=True)
            await self._weights.settled()
        self._stopping = False

    async def run(self) -> None:
        """Train batch after batch until the run is finished or stopped. Never cancelled between a step and its
        record: `stop` is how it ends early."""
        flow = self._context.flow
        if self._made is not None:
            await self._see_through(self._made[0], again=True)
        while not (flow.is_finished or self._stopping):
            with ExitStack() as kept:
                with self._context.activity.training(spent.TRAINS):
                    step = await self._train(flow.batch, kept)
                if step is None:
                    if not self._stopping:  # perhaps it takes engines to have its rows again
                        await self._turns.generate()
                    continue
                self._turns.trained()
                self._made = step, kept.pop_all()
            await self._see_through(step)
        await self._weights.settled()
        await self._settled()

    async def _see_through(self, step: TrainedStep, *, again: bool = False) -> None:
        """Publish the version that the step made, and have it recorded. Where the trainer is lost meanwhile, it is
        `_made` still. `again`: so it was, perhaps once the version had left."""
        try:
            with self._context.activity.training(spent.PUBLISHES):
                await self._publish(again=again)
                if self._turns.shares_devices:  # whoever wakes takes it
                    await self._weights.settled()
            await self._after_step(step)
        except WorkerLost:
            raise
        except BaseException:
            self.forget_step()
            raise
        self.forget_step()

    def forget_step(self) -> None:
        """What it has still to see through is seen through, or the run is about to go back behind it."""
        if self._made is not None:
            (_, kept), self._made = self._made, None
            kept.close()

    async def _publish(self, *, again: bool = False) -> None:
        version = Version(self._lineage.branch, self._context.flow.batch)
        publish = self._weights.publish_again if again else self._weights.publish
        await publish(version, self._ask)

    async def _train(self, batch: int, kept: ExitStack) -> TrainedStep | None:
        """One batch: accumulate, step, ack. None if it ended without a step. `kept`: until it is closed, the batch's
        refs are there."""
        self._train_s = 0.0
        work = _Batch(batch, warm_up=batch < self._warm_up)
        try:
            async for lease in self._leases(batch):
                work.leases.append(lease)
                rows = [self._to_train(row, batch) for row in lease.rows]
                for row, told in zip(lease.rows, rows, strict=True):
                    work.stats.add(row, told.trained, batch, self._rule, self._lineage)
                work.rows += zip(lease.rows, rows, strict=True)
                self._context.table.hold(lease)
                if not await self._turns.train(until=lambda: self._stopping):
                    break
                if not work.warm_up:
                    await self._accumulate(work, rows)
            if work.leases and not self._stopping:
                await self._critic_ready(batch)
                self._context.table.settle(*work.leases, *(self._critic.leases if self._critic else ()))
        except (StaleLease, RefLost) as lost:
            self._context.report("restarted_batch", {"batch": batch, "message": str(lost)})
            await self._give_up(work)
            if isinstance(lost, RefLost):
                await self._begun_again.after(batch, lost, until=lambda: self._stopping)
            return None
        except BaseException:
            self._free(work)  # whoever ends it knows nothing of these
            raise
        if self._stopping or not work.leases:
            await self._give_up(work)
            return None
        try:
            critic, epochs = await self._critics_steps(batch, self._steps(work))
        except BaseException:  # the critic's, too, when the actor has made its steps
            self._free(work)
            raise
        kept.enter_context(self._context.table.keep_refs(dict.fromkeys(row.group for row, _ in work.rows)))
        kept.callback(self._free, work)
        self._context.table.ack(*work.leases)
        if work.warm_up:
            work.stats.leave_untrained()
        if self._trained is not None:
            await self._trained(batch, epochs[0], work.stats)
        done = self._context.flow.step()
        return TrainedStep(
            batch,
            done.groups,
            done.late_groups,
            done.dropped,
            work.stats,
            epochs,
            self._train_s,
            begun=epochs[0] if self._recomputes else epochs[0][:1],
            critic=critic,
            gap=work.gap,
            warm_up=work.warm_up,
            rows=work.trained_rows(),
        )

    async def _accumulate(self, work: _Batch, rows: Sequence[RowToTrain]) -> None:
        """Gradients of the first step, which can still be given up. With whole batches, `rows` are all of one."""
        if self._whole is None:
            first = len(work.rows) - len(rows)
            plan = plan_microbatches([len(row) for row in rows], self._max_tokens)
            for micros in self._call_size.calls(plan):
                if self._stopping:
                    return
                began = await in_one_call(self._context, self._call_size, rows, micros, self._pass)
                places = [first + place for micro in micros for place in micro]
                work.began.update(zip(places, began, strict=False))
            return

        async def hold(known: Sequence[RowToTrain]) -> None:
            await self._ask(self._trainer.hold(work.number, known, self._coefficient()))

        await with_known_refs(self._context, rows, hold)
        work.whole = WholeBatch(
            [len(row) for row in rows],
            work.number,
            self._trainer,
            self._ask,
            self._whole.epochs,
            max_tokens=self._max_tokens,
            given_up=lambda: self._stopping,
        )
        if self._whole.recompute:
            await work.whole.score()
        if self._whole.prepares:
            await work.whole.prepare()
        await work.whole.begin()

    async def _critic_ready(self, batch: int) -> None:
        """Neither steps before the gradients of both are whole."""
        if self._critic is not None:
            with self._context.activity.training(spent.CRITIC):
                await self._critic.ready(batch, until=lambda: self._stopping)

    async def _critics_steps(
        self, batch: int, own: Coroutine[Any, Any, tuple[tuple[StepReport, ...], ...]]
    ) -> tuple[tuple[StepReport, ...], tuple[tuple[StepReport, ...], ...]]:
        """The critic's steps on `batch`, if there is one, beside `own`."""
        if self._critic is None:
            return (), await own
        critic = self._context.runtime.spawn(self._critic.step(batch), "critic's step")
        try:
            reports = await own
            with self._context.activity.training(spent.CRITIC):
                return await critic, reports
        finally:
            critic.cancel()  # which does nothing to one that is done
            await asyncio.gather(critic, return_exceptions=True)

    async def _steps(self, work: _Batch) -> tuple[tuple[StepReport, ...], ...]:
        rows = self._gap_rows(work.number)
        if rows:
            work.gap = await self._ask(self._trainer.gap(rows, self._max_tokens))
        if self._whole is None or work.whole is None:
            return ((await self._ask(self._trainer.step()),),)
        made = await work.whole.finish(self._whole.enough)
        work.began = await freed_if_left(
            self._context.runtime, self._context.refs, work.whole.let_go(), "what a batch began with"
        )
        return made

    async def _give_up(self, work: _Batch) -> None:
        """Forget the gradients; rows that are still ours go back."""
        await self._ask(self._trainer.discard())
        for lease in work.leases:
            with suppress(StaleLease):
                self._context.table.give_back(lease)
        self._free(work)

    def _free(self, work: _Batch) -> None:
        for ref in work.began.values():
            self._context.refs.free(ref)

    def _to_train(self, row: Row, batch: int) -> RowToTrain:
        fresh = self._fresh.tokens(batch, row.header.spans)
        return to_train(row, self._rule.trained(row.header, batch), (*SPANNED, *self._columns), fresh)

    async def _pass(self, micros: list[list[RowToTrain]]) -> Sequence[Ref]:
        return await self._ask(self._trainer.accumulate(micros, self._coefficient()))

    def _leases(self, batch: int) -> AsyncIterator[Lease]:
        return _Leases(self, self._loader.leases(batch, until=lambda: self._stopping))

    async def _ask(self, computing: Awaitable[T]) -> T:
        clock = self._context.runtime.clock
        began = clock.now()
        try:
            return await self._context.computed(TRAINER_LANE, "the trainer", computing)
        finally:
            self._train_s += clock.now() - began


@dataclass(slots=True)
class _Leases:
    """Those of a batch, until the actor is told to stop; waits for them are counted."""

    actor: ActorRole
    source: AsyncIterator[Lease]

    def __aiter__(self) -> _Leases:
        return self

    async def __anext__(self) -> Lease:
        context = self.actor._context
        with context.waits.waiting(NAME, spent.ROWS), context.activity.training(spent.ROWS):
            lease = await anext(self.source)
        if self.actor._stopping:
            context.table.give_back(lease)
            raise StopAsyncIteration
        return lease


@dataclass(slots=True)
class _Batch:
    """What the actor holds of the batch that it trains."""

    number: int
    leases: list[Lease] = field(default_factory=list)
    whole: WholeBatch | None = None
    stats: BatchStats = field(default_factory=BatchStats)
    gap: Gap | None = None
    warm_up: bool = False
    rows: list[tuple[Row, RowToTrain]] = field(default_factory=list)
    began: dict[int, Ref] = field(default_factory=dict)
    """By place in `rows`: log-probs under the weights that the batch begins with."""

    def trained_rows(self) -> tuple[TrainedRow, ...]:
        """Each with the trainer's log-probs, if it came to know them."""
        return tuple(
            TrainedRow(row, told.trained, self.began.get(place) or row.columns.get("proximal"))
            for place, (row, told) in enumerate(self.rows)
        )
