"""What a run does once the steps on a batch are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from headrace.controller.best import BestCheckpoint
from headrace.controller.building.models import Models
from headrace.controller.checkpointer import Checkpointer
from headrace.controller.divergence import Divergence
from headrace.controller.planning.plan import Plan
from headrace.controller.recorder import Recorder
from headrace.roles.actors.batch_stats import BatchStats
from headrace.roles.actors.trained_step import TrainedStep
from headrace.roles.columns.functions import AskedFunctions
from headrace.roles.rollout_record import RolloutRecord
from headrace.roles.turns import Turns
from headrace.training.group import TrainerGroup
from headrace.training.protocol import StepReport
from headrace.weights.version import Lineage, Version


def trained_batch(
    plan: Plan, models: Models, functions: AskedFunctions, refreshes: Refreshes, checkpointer: Checkpointer
) -> Callable[[int, Sequence[StepReport], BatchStats], Awaitable[None]]:
    """Called with a batch once the steps on it are made, before the next one can be sealed: a coefficient of a KL in
    the loss moves, by what the steps report, the reference is refreshed where that is due, and what goes with the
    weights is taken for a checkpoint."""
    kl, moves = models.kl, plan.config.algorithm.kl.moves_in_loss

    async def trained(batch: int, reports: Sequence[StepReport], stats: BatchStats) -> None:
        measured = [report.stats["reference_kl"] for report in reports if "reference_kl" in report.stats]
        samples = stats.trained_samples
        if moves and measured and samples:
            kl.take(batch, await functions.coefficient(kl.value, sum(measured), samples))
        await refreshes.at(batch + 1)
        checkpointer.trained()

    return trained


def recorded_step(
    recorder: Recorder,
    rollouts: RolloutRecord,
    divergence: Divergence,
    checkpointer: Checkpointer,
    best: BestCheckpoint | None,
    lineage: Lineage,
    groups: Sequence[TrainerGroup],
    turns: Turns,
) -> Callable[[TrainedStep], Awaitable[None]]:
    """Called once a step is made: it is recorded, a checkpoint begins where one is due, and whoever generates has the
    devices. `groups`: those that train, which are settled once all of the step is recorded."""
    recorded: TrainedStep | None = None

    async def after_step(step: TrainedStep) -> None:
        nonlocal recorded
        if step is not recorded:  # a trainer that was lost behind that is healed, and the step seen through
            await rollouts.trained(step)  # before the batch's entry: who reads that finds its samples
            recorder.batch(step)
            recorded = step
            divergence.look_at(step)
        await checkpointer.after(Version(lineage.branch, step.batch + 1))
        for group in groups:
            group.settled()
        await turns.generate()  # before anybody waits for an evaluation
        if best is not None:
            await best.begun(step.batch + 1)

    return after_step


class Refreshes:
    """Of the reference: every n-th version is made it."""

    def __init__(self, plan: Plan, models: Models, lineage: Lineage) -> None:
        self._every = plan.config.reference.refresh_every
        self._models = models
        self._lineage = lineage
        self.have_begun = False
        """Whether it may be another than it was at first."""

    async def at(self, number: int) -> None:
        """To be called with the number of each version before a row of its batch can be scored."""
        models = self._models
        if models.refreshed is None or self._every is None or number % self._every:
            return
        self.have_begun = True
        if models.reference is None:
            await models.trainer.keep_reference()
        else:  # nobody else is to receive this version yet
            await models.reference.take([await models.trainer.show_aside(Version(self._lineage.branch, number))])
            await models.trainer.end_aside()
