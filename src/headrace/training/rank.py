"""One rank of a trainer group: its trainer, the rows of the batch that it is at, and where its weights leave for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from headrace.algorithms.kl_controllers import TakenCoefficient
from headrace.config.algorithm import AlgorithmConfig
from headrace.experience.columns import read, refs_of
from headrace.models.packing import MicroBatch, PackRow, pack
from headrace.models.values import values_and_last
from headrace.runtime.local.service import on_lane
from headrace.runtime.protocol import Services
from headrace.runtime.refs import Ref, Refs
from headrace.runtime.wire.wire_types import WireTypes
from headrace.store.media.files import Digest
from headrace.training.gap import Gap, measure
from headrace.training.objective import policy_columns, prepare_batch
from headrace.training.parts_on_disk import Opened, OpenFolder, PartsOnDisk
from headrace.training.protocol import PartWritten, PolicyTrainer, Saved, StepReport, Trainer, Written
from headrace.training.replicas import At, MeetingPlace
from headrace.training.rows.held_rows import HeldRows
from headrace.training.rows.packed_rows import ROW_TYPES, RowToTrain, pack_row, put_each, split
from headrace.training.rows.row_reader import RowReader
from headrace.training.rows.spans import SPANNED, check_spans
from headrace.training.scoring import Scoring
from headrace.weights.devices import device_name
from headrace.weights.disk import DiskPublisher
from headrace.weights.in_process import MemoryPublisher
from headrace.weights.manifest import build_manifest
from headrace.weights.parts import OpenSlot, Part, PartWriter, require_all
from headrace.weights.plane import Snapshot, WeightPublisher
from headrace.weights.seen import Seen, seen_here
from headrace.weights.shm import ShmPublisher
from headrace.weights.swap_check import SwapCheck
from headrace.weights.version import Version

BEGAN = "began"
"""Column of the log-probs under the weights that a batch begins with."""
PROXIMAL = "proximal"
_OUT = "weights out"
"""The lane of their journey."""
CHECKPOINTS = "checkpoints"
"""The lane on which they are written."""
_VALUES = ("values", "returns")

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


@dataclass(frozen=True, slots=True)
class Task:
    """What a rank does with rows."""

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


class TrainerRank:
    """What is asked of it and what it answers is plain data: it can be in any process. Blocking, unless async; on one
    lane."""

    def __init__(
        self,
        trainer: Trainer,
        services: Services,
        task: Task,
        *,
        plane: WeightPublisher | None = None,
        aside: Callable[[], WeightPublisher] = MemoryPublisher,
        coefficient: TakenCoefficient | None = None,
        reference: Kept | None = None,
        check: Callable[[], SwapCheck] | None = None,
        by_parts: bool = False,
        deltas: bool = True,
        device: torch.device,
    ) -> None:
        """`plane`: by which its weights leave; in this process's memory unless given. `aside`: makes one for a version
        that one receiver alone takes. `coefficient`: of a KL in the loss, which is told with the rows. `reference`: the
        copy that it keeps of its own weights, if that goes with a checkpoint. `check`: makes the swap check of the
        present weights, where they are converted or copied on their way. `by_parts`: each rank writes what it has
        of the weights into what they leave through, as they do aside; if that is in this process alone, none leave.
        `deltas`: see `PartWriter`.
        `device`: of the weights."""
        self._trainer = trainer
        self._services = services
        self._task = task
        self._reader = task.reader or RowReader(services.refs)
        self._plane = plane or MemoryPublisher()
        self._make_aside = aside
        self._aside: WeightPublisher | None = None
        self._coefficient = coefficient
        self._reference = reference
        self._check = check
        self._held: HeldRows | None = None
        self._by_parts = by_parts
        self._deltas = deltas
        self._device = device
        self._writer = PartWriter()
        self._snapshot: Snapshot | None = None
        self._shown: Snapshot | None = None
        """Of what is shown aside, while ranks write it."""
        self._began_s = self._copied_s = 0.0
        self._taken_state: Saved | None = None
        self._taken_reference: Saved | None = None
        self._meeting = MeetingPlace()
        self._tells = self._leads = True
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
        self._tells, self._leads = tells, rank == 0
        self._of_many.join(rank, self._meeting.of(at), seconds)
        self._reader.join(self._of_many.beside)
        if self._by_parts:
            self._writer = PartWriter(self._of_many.peers, deltas=self._deltas)

    def pair(self, replica: int, at: At, seconds: float) -> None:
        """Be of one of several replicas, whose other ones find each other there. Raises RuntimeError."""
        self._of_many.pair(replica, self._meeting.of(at), seconds)

    def heal(self, replica: int, steps: int) -> None:
        """Have the state of this replica, which has made so many `steps`. Raises RuntimeError."""
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
        """Transport and address that a receiver of its weights is made of."""
        return self._plane.transport, self._plane.address

    def newest(self) -> Version | None:
        """The newest version that can be received from where its weights leave; of whoever sent it, where that outlasts
        who did. None before the first. Raises WeightError."""
        return self._plane.receiver().latest()

    def sees(self) -> Seen:
        """Where it is."""
        return seen_here(device_name(self._device))

    def snapshot(self, version: Version) -> Opened | None:
        """Copy the weights as they are. Where they leave by parts that is only begun: all are to `write_part`, then the
        first is to `seal`; the others answer nothing. Raises WeightError."""
        check = None if self._check is None else self._check()
        if self._by_parts:
            if not self._leads or isinstance(self._plane, MemoryPublisher):
                return None
            self._began_s = self._services.clock.now()
            self._snapshot, opened = self._opened(self._plane, version, check)
            return opened
        if not self._leads:
            return None
        began = self._services.clock.now()
        self._snapshot = self._plane.snapshot(version, self._trainer.tensors(), check)
        self._copied_s = self._services.clock.now() - began
        return None

    def write_part(self, opened: Opened) -> PartWritten:
        """What this rank has written of the version: see `PartWriter`. Raises WeightError, RuntimeError."""
        trainer: Any = self._trainer
        if isinstance(opened, OpenFolder):
            boxes = ((name, piece.begin, piece.tensor.detach()) for name, piece in trainer.pieces())
            return PartWritten(PartsOnDisk(trainer.outlines()).write(opened, boxes))
        dtypes = {name: outline.dtype for name, outline in trainer.outlines().items()}
        parts = (Part(name, piece.begin, piece.tensor, dtypes[name]) for name, piece in trainer.pieces())
        size, came = self._writer.write(opened, parts), self._writer.came
        return PartWritten(size, came.size, came.sent)

    def seal(self, written: int) -> None:
        """Of the first, once all have written so many bytes together. Raises WeightError."""
        assert self._snapshot is not None, "no snapshot was begun"
        require_all(self._snapshot.manifest, written)
        self._copied_s = self._services.clock.now() - self._began_s

    async def send(self) -> tuple[int, float]:
        """Have the last snapshot received from now on, whole, while the trainer goes on. Its bytes, and the seconds
        that copying and sending them took. Raises WeightError."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None:
            return 0, 0.0
        began = self._services.clock.now()
        manifest = await self._services.compute(_OUT, self._plane.send, snapshot)
        size = sum(entry.size for entry in manifest.entries)
        return size, self._copied_s + self._services.clock.now() - began

    def show_aside(self, version: Version) -> tuple[str, str] | Opened | None:
        """Publish the weights as they are for one receiver alone, until `end_aside`. As `plane`; where they leave by
        parts, as `snapshot`, with `seal_aside`."""
        if self._by_parts:
            if not self._leads:
                return None
            self._aside = self._make_aside()
            self._shown, opened = self._opened(self._aside, version)
            return opened
        if not self._leads:
            return None
        self._aside = self._make_aside()
        self._aside.publish(version, self._trainer.tensors())
        return self._aside.transport, self._aside.address

    def seal_aside(self, written: int) -> tuple[str, str]:
        """See `seal`; as `plane`."""
        snapshot, self._shown = self._shown, None
        assert self._aside is not None
        assert snapshot is not None, "nothing is shown"
        require_all(snapshot.manifest, written)
        self._aside.send(snapshot)
        return self._aside.transport, self._aside.address

    def end_aside(self) -> None:
        """See `show_aside`."""
        self._aside = None

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

    def _opened(
        self, plane: WeightPublisher, version: Version, check: SwapCheck | None = None
    ) -> tuple[Snapshot, Opened]:
        """What all ranks are to write into, and what it is once they have."""
        trainer: Any = self._trainer
        outlines = trainer.outlines()
        manifest = build_manifest(version, outlines, checksums=False)
        if isinstance(plane, DiskPublisher):
            folder = OpenFolder(str(plane.begin(manifest)))
            PartsOnDisk(outlines).lay_out(folder)
            return Snapshot(manifest, {}, check), folder
        assert isinstance(plane, ShmPublisher), "all ranks see what they write into"
        slot = plane.begin(manifest)
        return Snapshot(manifest, slot.tensors, check), OpenSlot(plane.address, slot.generation)

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
