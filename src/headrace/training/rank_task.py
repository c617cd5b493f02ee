"""What a rank of a trainer group does with rows: which columns it reads, and what it computes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from headrace.config.algorithm import AlgorithmConfig
from headrace.models.packing import MicroBatch
from headrace.models.values import values_and_last
from headrace.runtime.refs import Refs
from headrace.training.objective import policy_columns, prepare_batch
from headrace.training.protocol import PolicyTrainer, Trainer
from headrace.training.rows.row_reader import RowReader
from headrace.training.scoring import Scoring

_VALUES = ("values", "returns")


@dataclass(frozen=True, slots=True)
class Task:
    columns: tuple[str, ...]
    """Of the table, beside tokens and mask, that the loss reads."""
    scores: Mapping[str, Scoring]
    """By the column that they write."""
    prepare: Callable[[Sequence[MicroBatch]], None] | None = None
    """Adds columns that need the whole batch."""
    reader: RowReader | None = None
    """By which rows come to what scores them, and to all else."""


def policy_task(trainer: PolicyTrainer, refs: Refs, config: AlgorithmConfig, *, own_proximal: bool) -> Task:
    """Of the actor's group."""
    reader, scores = RowReader(refs), {"proximal": trainer.logprobs, "reference": trainer.reference_logprobs}
    return Task(
        policy_columns(config, own_proximal=own_proximal),
        {name: Scoring(reader, score, name) for name, score in scores.items()},
        prepare_batch(config),
        reader,
    )


def value_task(trainer: Trainer, refs: Refs, config: AlgorithmConfig) -> Task:
    """Of the critic's group. With `bootstrap`, values come with that of the state after each sample."""
    reader = RowReader(refs)
    values = Scoring(reader, trainer.outputs, "values")
    if config.truncated == "bootstrap":
        values = Scoring(reader, partial(trainer.outputs, of=values_and_last), "values", ("truncated",))
    return Task(_VALUES, {"values": values}, reader=reader)
