"""One rank of a trainer group: its trainer, and the rows of the batch that it is at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch

from headrace.algorithms.kl_controllers import TakenCoefficient
from headrace.experience.columns import read, refs_of
from headrace.models.packing import PackRow, pack
from headrace.runtime.local.service import on_lane
from headrace.runtime.protocol import Services
from headrace.runtime.refs import Ref, Refs
from headrace.runtime.wire.wire_types import WireTypes
from headrace.store.media.files import Digest
from headrace.training.gap import Gap, measure
from headrace.training.outgoing_weights import OutgoingWeights
from headrace.training.parts_on_disk import Opened, OpenFolder
from headrace.training.protocol import PartWritten, PolicyTrainer, Saved, StepReport, Trainer, Written
from headrace.training.rank_task import Task
from headrace.training.replicas import At, MeetingPlace
from headrace.training.rows.held_rows import HeldRows
from headrace.training.rows.packed_rows import ROW_TYPES, RowToTrain, pack_row, put_each, split
from headrace.training.rows.row_reader import RowReader
from headrace.training.rows.spans import SPANNED, check_spans
from headrace.weights.devices import device_name
from headrace.weights.parts import OpenSlot
from headrace.weights.seen import Seen, seen_here
from headrace.weights.version import Version

BEGAN = "began"
"""Column of the log-probs under the weights that a batch begins with."""
PROXIMAL = "proximal"
CHECKPOINTS = "checkpoints"
"""The lane on which they are written."""

TRAINER_TYPES = ROW_TYPES.with_types(
    WireTypes(
        {
            "gap": Gap,
            "open_folder": OpenFolder,
            "open_slot": OpenSlot,
            "part_written": PartWritten,
            "pack_row": PackRow,
            "seen": Seen,
            "step_report": StepReport,
            "version": Version,
            "written": Written,
            "digest": Digest,
        }
    )
)
"""What crosses to and from a rank."""


class Kept(Protocol):
    """A copy of weights that goes with a checkpoint. Blocking."""

    def saved(self, *, copies: bool) -> Saved:
        """See `Trainer.saved`."""

    def load(self, path: Path) -> None:
        """What was written of it into the folder `path`. Raises CheckpointError."""


class TrainerRank:
    """What is asked of it and what it answers is plain data: it can be in any process. Blocking, unless async; on one
    lane."""

    def __init__(
        self,
        trainer: Trainer,
        services: Services,
        task: Task,
        *,
        weights: OutgoingWeights | None = None,
        coefficient: TakenCoefficient | None = None,
        reference: Kept | None = None,
        device: torch.device,
    ) -> None:
        """`weights`: of the trainer, on their way to whoever takes them; to this process alone unless given.
        `coefficient`: of a KL in the loss, which is told with the rows. `reference`: the copy that it keeps of its own
        weights, if that goes with a checkpoint. `device`: of the weights."""
        self._trainer = trainer
        self._services = services
        self._task = task
        self._reader = task.reader or RowReader(services.refs)
        self._out = weights or OutgoingWeights(trainer, services)
        self._coefficient = coefficient
        self._reference = reference
        self._held: HeldRows | None = None
        self._device = device
        self._taken_state: Saved | None = None
        self._taken_reference: Saved | None = None
        self._meeting = MeetingPlace()
        self._tells = True
        self._taken: list[tuple[list[RowToTrain], list[PackRow]]] = []
        self._steps = 0
        self._remembered: int | None = None
        """Steps that were made at the last `remember`."""

    def meet(self, seconds: float, host: str) -> At:
        """Of the first of some ranks: where the others find it. `host`: see `Meeting`. Raises ConfigError."""
        return self._meeting.open(seconds, host)

    def come_together(self, rank: int, at: At, seconds: float, tells: bool) -> None:
        """Be one of the ranks of a replica, who meet there. `tells`: whether it is who answers for its part of the
        data. Raises RuntimeError, ConfigError."""
        self._tells = tells
        self._of_many.join(rank, self._meeting.of(at), seconds)
        self._reader.join(self._of_many.beside)
        self._out.join(leads=rank == 0)

    def pair(self, replica: int, size: int, at: At, seconds: float) -> None:
        """Be of one of so many replicas that take part, who find each other there. Raises RuntimeError."""
        self._of_many.pair(replica, self._meeting.of(at), seconds, size)

    def heal(self, replica: int, steps: int) -> None:
        """Have the state of this replica, of those that are paired, which has made so many `steps`. Raises
        RuntimeError."""
        self._held, self._taken = None, []
        self._of_many.heal(replica)
        self._steps, self._remembered = steps, None

    def take(self, parts: Sequence[Sequence[RowToTrain]], coefficient: float | None = None) -> None:
        """Read these rows, of one micro-batch each, for `accumulate_taken`; without rows it is a pass for the sake of
        other ranks. By all ranks that are given them. Raises StalenessError, RefLost."""
        self._penalise(coefficient)
        packed = iter(self._packed([row for rows in parts for row in rows]))
        self._taken = [(list(rows), [next(packed) for _ in rows]) for rows in parts]

    def accumulate_taken(self) -> list[list[Ref]]:
        """See `accumulate`: of each micro-batch that was taken."""
        taken, self._taken = self._taken, []
        return [self._accumulated(rows, packed) for rows, packed in taken]

    def accumulate(self, micros: Sequence[Sequence[RowToTrain]], coefficient: float | None = None) -> list[list[Ref]]:
        """Accumulate these micro-batches, one after another. Of each a ref for each row to the log-probs that the batch
        began with; none if the trainer does not tell. `coefficient`: of a KL in the loss, if that moves. Raises
        StalenessError; RefLost, with nothing accumulated."""
        self._penalise(coefficient)
        packed = iter(self._packed([row for rows in micros for row in rows]))
        return [self._accumulated(rows, [next(packed) for _ in rows]) for rows in micros]

    def _accumulated(self, rows: Sequence[RowToTrain], packed: list[PackRow]) -> list[Ref]:
        if not rows:
            self._idle(trains=True)
            return []
        found = self._trainer.accumulate(pack(packed))
        if not self._tells or BEGAN not in found:
            return []
        return put_each(self._services.refs, BEGAN, split(found[BEGAN].numpy(), rows))

    def hold(self, batch: int, rows: Sequence[RowToTrain], coefficient: float | None = None) -> None:
        """Keep the rows of a whole batch until `let_go`, for passes that name their places. Raises StalenessError,
        RefLost."""
        self._penalise(coefficient)
        self._held = HeldRows(self._packed(rows), batch)

    def score_held(self, places: Sequence[int]) -> None:
        """Give the rows at these places the column `proximal`: log-probs under the present weights."""
        if places:
            self._rows.score(places, PROXIMAL, self._trainer.logprobs)
        else:
            self._idle(trains=False)

    def prepare_held(self) -> None:
        """Give the rows the columns that need all of them."""
        if self._task.prepare is not None:
            self._rows.prepare(self._task.prepare)

    def accumulate_held(self, places: Sequence[int]) -> None:
        """Accumulate the rows at these places, as one micro-batch."""
        if places:
            self._rows.accumulate(self._trainer, places)
        else:
            self._idle(trains=True)

    def let_go(self) -> list[Ref | None]:
        """Forget the rows. Of each a ref to the log-probs that the batch began with, where they are known."""
        held, self._held = self._held, None
        if held is None or not self._tells:
            return []
        known = zip(held.column(BEGAN), held.column(PROXIMAL), strict=True)
        found = [proximal if began is None else began for began, proximal in known]
        return [None if values is None else self._services.refs.put({BEGAN: values}) for values in found]

    def add_up(self) -> None:
        """The first half of a step of several ranks: see `HFTrainer.add_up`. Raises RuntimeError."""
        self._of_many.add_up()

    def step(self) -> StepReport:
        """See `Trainer.step`."""
        report = self._trainer.step()
        self._steps += 1
        if self._held is not None:
            self._held.stepped()
        read, told = self._reader.taken()
        return replace(report, read_bytes=read, told_bytes=told)

    def reaches(self) -> list[int]:
        """With how many steps it can be: those that it has made since it was made, or told where to go on, and those
        before the batch's first."""
        return [self._steps] if self._remembered is None else [self._steps, self._remembered]

    def remember(self) -> None:
        """See `HFTrainer.remember`."""
        self._of_many.remember()
        self._remembered = self._steps

    def recall(self, steps: int) -> None:
        """Have made so many steps, of those that it `reaches`."""
        if steps != self._steps:
            if steps != self._remembered:
                raise RuntimeError(f"{steps} steps were not remembered: there are {self.reaches()}")
            self._of_many.recall()
            self._steps = steps

    def rate(self) -> float:
        """See `Trainer.rate`."""
        return self._trainer.rate()

    def sleep(self) -> None:
        """See `Trainer.sleep`."""
        self._trainer.sleep()

    def wake(self) -> None:
        """See `Trainer.wake`."""
        self._trainer.wake()

    def discard(self) -> None:
        """Forget what was accumulated, and the rows."""
        self._held, self._taken = None, []
        self._trainer.discard()

    def read(self, column: str, parts: Sequence[Sequence[RowToTrain]]) -> None:
        """Read the rows of the `scores` of this column that come next. By all ranks that pass together. Raises
        RefLost."""
        self._task.scores[column].read(parts)

    def scores(self, column: str, rows: Sequence[RowToTrain]) -> Sequence[Sequence[Any]]:
        """See `Scoring`: of what writes this column, under the present weights."""
        if not rows:
            self._idle(trains=False)
            return []
        return self._task.scores[column](rows, tells=self._tells)

    def gap(self, rows: Sequence[PackRow], max_tokens: int) -> Gap | None:
        """See `measure`: under the present weights."""
        return measure(rows, max_tokens, self._trainer.logprobs)

    def plane(self) -> tuple[str, str]:
        """This and those that follow to `end_aside`: see `OutgoingWeights`."""
        return self._out.plane()

    def newest(self) -> Version | None:
        return self._out.newest()

    def snapshot(self, version: Version) -> Opened | None:
        return self._out.snapshot(version)

    def write_part(self, opened: Opened) -> PartWritten:
        return self._out.write_part(opened)

    def seal(self, written: int) -> None:
        self._out.seal(written)

    async def send(self) -> tuple[int, float]:
        return await self._out.send()

    def show_aside(self, version: Version) -> tuple[str, str] | Opened | None:
        return self._out.show_aside(version)

    def seal_aside(self, written: int) -> tuple[str, str]:
        return self._out.seal_aside(written)

    def end_aside(self) -> None:
        self._out.end_aside()

    def sees(self) -> Seen:
        """Where it is."""
        return seen_here(device_name(self._device))

    def keep_reference(self) -> None:
        """See `PolicyTrainer.keep_reference`."""
        self._policy.keep_reference()

    def take_state(self, copies: bool) -> None:
        """See `Trainer.saved`: for `write_state`."""
        self._taken_state = self._trainer.saved(copies=copies)

    async def write_state(self, path: str) -> Written:
        """What was taken, into the folder `path`, while the trainer goes on if that is a copy. Where it is cancelled it
        ends once nothing is written any more. Raises OSError."""
        taken, self._taken_state = self._taken_state, None
        return await self._written(taken, path)

    def load(self, path: str) -> None:
        """See `Trainer.load`."""
        self._trainer.load(Path(path))
        self._steps, self._remembered = 0, None

    def begin_from(self, path: str, masters: bool, optimizer: bool) -> None:
        """See `Trainer.begin_from`."""
        self._trainer.begin_from(Path(path), masters=masters, optimizer=optimizer)
        self._steps, self._remembered = 0, None

    def take_reference(self, copies: bool) -> None:
        """As `take_state`: the copy that it keeps of its own weights."""
        self._taken_reference = self._kept.saved(copies=copies)

    async def write_reference(self, path: str) -> Written:
        """As `write_state`."""
        taken, self._taken_reference = self._taken_reference, None
        return await self._written(taken, path)

    async def _written(self, taken: Saved | None, path: str) -> Written:
        assert taken is not None, "nothing was taken"
        return await on_lane(self._services, CHECKPOINTS, taken.write, Path(path))

    def load_reference(self, path: str) -> None:
        """What was written of it. Raises CheckpointError."""
        self._kept.load(Path(path))

    @property
    def _rows(self) -> HeldRows:
        assert self._held is not None, "no batch is held"
        return self._held

    @property
    def _kept(self) -> Kept:
        assert self._reference is not None, "no reference goes with the checkpoint"
        return self._reference

    @property
    def _policy(self) -> PolicyTrainer:
        trainer: Any = self._trainer
        return trainer

    @property
    def _of_many(self) -> Any:
        """A trainer that may be one of several."""
        return self._trainer

    def _idle(self, *, trains: bool) -> None:
        self._of_many.idle(trains=trains)

    def _penalise(self, coefficient: float | None) -> None:
        if coefficient is not None and self._coefficient is not None:
            self._coefficient.value = coefficient

    def _packed(self, rows: Sequence[RowToTrain]) -> list[PackRow]:
        if not rows:
            return []

        def made(refs: Refs) -> list[PackRow]:
            for row in rows:
                check_spans(row.header, read(refs, row, SPANNED))
            return [pack_row(refs, row, self._task.columns) for row in rows]

        return self._reader(refs_of(rows), made)
