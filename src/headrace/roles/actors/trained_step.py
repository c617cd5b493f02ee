"""What the actor reports of a batch that it trained, and of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.experience.header import Span
from headrace.experience.leases import Row
from headrace.roles.actors.batch_stats import BatchStats
from headrace.runtime.refs import Ref
from headrace.training.gap import Gap
from headrace.training.protocol import StepReport


@dataclass(frozen=True, slots=True)
class TrainedRow:
    """A row of the batch, and what became of it."""

    row: Row
    trained: tuple[Span, ...] = ()
    """The tokens that entered the loss."""
    logprobs: Ref | None = None
    """To one column: the trainer's, under the weights that the batch began with; None where it does not know them."""


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """What the actor reports of a batch."""

    batch: int
    groups: int
    late_groups: int
    dropped: Mapping[str, int]
    """Groups that were dropped while it was composed, by reason."""
    stats: BatchStats
    epochs: tuple[tuple[StepReport, ...], ...]
    """Of each epoch over the batch what its optimiser steps report."""
    train_s: float
    """Seconds that the trainer computed for this batch."""
    begun: tuple[StepReport, ...] = ()
    """Of these, those that compare the engine with the weights that the batch began with."""
    critic: tuple[StepReport, ...] = ()
    gap: Gap | None = None
    """Of the tokens that were drawn only to measure it; None if none were."""
    warm_up: bool = False
    """Whether the critic learns alone in this batch."""
    rows: tuple[TrainedRow, ...] = ()
    only_recorded: bool = False
    """Whether there is no trainer."""

    @property
    def reports(self) -> tuple[StepReport, ...]:
        """One for each optimiser step."""
        return tuple(report for epoch in self.epochs for report in epoch)
