"""Hands samples to the record of rollouts: some of each batch, all that failed, and some of what was dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from headrace.experience.columns import SAMPLE_COLUMNS, read, sample_of
from headrace.experience.header import GroupHeader, mask_of
from headrace.experience.records.rollouts import Decode, kept_of, rollout_of
from headrace.experience.sample import Group, SampleStatus
from headrace.roles.actors.trained_step import TrainedRow, TrainedStep
from headrace.roles.context import RoleContext
from headrace.runtime.refs import Ref, RefLost
from headrace.store.rollouts import Rollout

LANE = "record"

Kept = Callable[[], Sequence[Rollout]]


class Writer(Protocol):
    def write(self, rollouts: Sequence[Rollout]) -> None: ...

    def forget(self, first_batch: int) -> None: ...

    def close(self) -> None: ...


class RolloutRecord:
    """A record that cannot be written costs an event, once, and no run."""

    def __init__(
        self,
        context: RoleContext,
        begin: Callable[[], Writer],
        decode: Decode,
        *,
        per_batch: int | None,
        seed: int,
        listener: Callable[[Sequence[Rollout]], None] = lambda rollouts: None,
    ) -> None:
        """`begin`: called once, before the first sample is kept, on the lane `record`, which alone uses the writer.
        `per_batch`: samples that are kept of a batch, and of what is dropped while it is composed; all if None.
        `listener` is told of what is kept, in the event loop."""
        self._listener = listener
        self._context = context
        self._begin = begin
        self._writer: Writer | None = None
        self._decode = decode
        self._per_batch = per_batch
        self._seed = seed
        self._dropped = Counter[int]()
        """Samples kept of dropped groups while a batch is composed; of the batch at hand only."""
        self._has_ended = False

    async def trained(self, step: TrainedStep) -> None:
        """The batch was trained."""
        numbers = {key: number for number, key in enumerate(dict.fromkeys(row.row.group for row in step.rows))}
        chosen = kept_of(
            [numbers[row.row.group] for row in step.rows],
            [float(row.row.columns["reward"]) for row in step.rows],
            self._per_batch,
            (self._seed, step.batch),
        )
        rows, at = [step.rows[place] for place in chosen], self._context.runtime.clock.wall()
        if rows:
            await self._write(lambda: [self._of_row(row, step.batch, at) for row in rows])

    async def failed(self, group: Group, of: str | None = None) -> None:
        """The group has ended: its samples that failed are kept. `of`: the held-out set that its prompt is of; then
        they are in the place of those of an earlier version, and the set's name begins the prompt's id."""
        batch, at = self._context.flow.batch, self._context.runtime.clock.wall()
        those = [sample for sample in group.samples if sample.status is SampleStatus.FAILED]
        prompt_id = group.prompt_id if of is None else f"{of}/{group.prompt_id}"
        if those and self._per_batch != 0:
            await self._write(lambda: [rollout_of(prompt_id, s, self._decode, batch=batch, at=at) for s in those])

    async def dropped(self, group: GroupHeader, of_samples: Sequence[Ref], reason: str) -> None:
        """The group is finished, and not trained on: its samples are kept, up to so many while a batch is composed."""
        batch, at = self._context.flow.batch, self._context.runtime.clock.wall()
        if batch not in self._dropped:
            self._dropped.clear()
        left = None if self._per_batch is None else max(self._per_batch - self._dropped[batch], 0)
        pairs = zip(group.samples, of_samples, strict=True)
        those = [(sample, ref) for sample, ref in pairs if sample.is_trainable][:left]
        self._dropped[batch] += len(those)
        if those:
            await self._write(
                lambda: [
                    rollout_of(
                        group.prompt_id,
                        sample_of(sample, self._context.refs.get(ref)),
                        self._decode,
                        batch=batch,
                        at=at,
                        dropped=reason,
                    )
                    for sample, ref in those
                ]
            )

    async def go_back(self, batch: int) -> None:
        """The run went back: what was kept of `batch` and later ones is forgotten."""
        if self._writer is not None and not self._has_ended:
            self._dropped.clear()
            await self._compute(partial(self._writer.forget, batch))

    async def close(self) -> None:
        """Nothing is kept from now on."""
        if self._writer is not None and not self._has_ended:
            self._has_ended = True
            await self._compute(self._writer.close)

    def _of_row(self, trained: TrainedRow, batch: int, at: float) -> Rollout:
        refs, row = self._context.refs, trained.row
        names = [*SAMPLE_COLUMNS, *(("advantages",) if "advantages" in row.columns else ())]
        try:
            columns = read(refs, row, names)
        except RefLost:  # who computed the advantages has died since
            columns = read(refs, row, SAMPLE_COLUMNS)
        logprobs = trained.logprobs
        return rollout_of(
            row.header.prompt_id,
            sample_of(row.header, columns),
            self._decode,
            batch=batch,
            at=at,
            reward=float(row.columns["reward"]),
            trained=mask_of(trained.trained, row.header.length),
            advantages=columns.get("advantages"),
            trainer_logprobs=None if logprobs is None else refs.get(logprobs)[logprobs.columns[0]],
        )

    async def _write(self, kept: Kept) -> None:
        """Decode and write, off the event loop."""

        written: list[Rollout] = []

        def write() -> None:
            if self._writer is None:
                self._writer = self._begin()
            rollouts = kept()
            self._writer.write(rollouts)
            written.extend(rollouts)

        if not self._has_ended:
            await self._compute(write)
            self._listener(written)

    async def _compute(self, function: Callable[[], None]) -> None:
        try:
            await self._context.compute(LANE, "the record of rollouts", function)
        except Exception as error:  # whatever it is: nothing of the run depends on this record
            self._has_ended = True
            self._context.report("rollouts_not_kept", {"message": f"{type(error).__name__}: {error}"})
