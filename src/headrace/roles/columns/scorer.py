"""A scorer: fills columns of the rows that are ready, as a model sees their tokens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headrace.experience.leases import Lease, RowId
from headrace.experience.loader import row_length
from headrace.experience.samplers import token_budget, whole_groups
from headrace.models.packing import plan_microbatches
from headrace.roles.abandoned import freed_if_left
from headrace.roles.columns.filling import Filled
from headrace.roles.context import RoleContext
from headrace.roles.model_return import ModelReturn
from headrace.runtime.refs import refs_in
from headrace.runtime.signal import Signal
from headrace.runtime.supervision import TAKE, Measure, after_failure
from headrace.runtime.workers import WorkerLost
from headrace.training.rows.packed_rows import RowToTrain, to_train
from headrace.weights.plane import NotThereYet, WeightError, WeightReceiver
from headrace.weights.version import Lineage, Version

Score = Callable[[Sequence[RowToTrain]], Awaitable[Sequence[Sequence[Any]]]]
"""Scores the rows of one forward pass, wherever the model is: of each the values of the role's columns."""


class FollowedWeights:
    """The weights of a model that takes the policy's versions, as they are published, and can be taken: what is there
    may be lost before it is, and is waited for again."""

    def __init__(
        self,
        context: RoleContext,
        receivers: Sequence[WeightReceiver],
        published: Signal,
        take: Callable[[Sequence[WeightReceiver]], Awaitable[Version]],
        lineage: Lineage,
        *,
        name: str,
        loaded: int | None,
    ) -> None:
        """`receivers`: of each rank of the model `name`, which `take` has load the newest version, and returns which
        that is. `lineage`: which versions are of the run; where it went back, what is there may be one that it left.
        `loaded`: number of the version that the model has, if it is one of the run."""
        self._context = context
        self._receivers = tuple(receivers)
        self._published = published
        self._take = take
        self._lineage = lineage
        self._name = name
        self._loaded = loaded
        self._missing = ""

    def forget(self) -> None:
        """The version that the model has may have been taken back."""
        self._loaded = None

    async def reach(self, number: int) -> None:
        """Have version `number`, which is about to be published if it is not. Raises WaitTimeout; WeightError where
        what is there cannot be taken, time and again; StoreError of the report."""
        if self._loaded == number:
            return
        context, failures = self._context, 0
        self._loaded = None  # of a version that could not be taken it may have a part
        while self._loaded is None:
            await self._published.wait_until(
                lambda: self._is_there(number),
                context.runtime.clock,
                context.stall_timeout_s,
                lambda: f"version {number} to be published, for the {self._name} model{self._missing}",
            )
            try:
                taken = await self._take(self._receivers)
                if not self._serves(taken, number):
                    raise WeightError(f"{taken} was taken, which is not v{number} of this run, or newer")
                self._loaded = taken.number
            except NotThereYet:
                continue  # it was, and was lost
            except WeightError as error:
                failures += 1
                then = after_failure(TAKE, failures)
                if then.measure is Measure.STOP:
                    raise
                context.report("update_failed", {"version": f"v{number}", "message": f"{self._name}: {error}"})
                await context.runtime.clock.sleep(then.pause_s)

    def _is_there(self, number: int) -> bool:
        """Whether each receiver can take it now. What was there once may be there no more, with a relay that was."""
        self._missing = ""
        try:
            offers = [receiver.offer() for receiver in self._receivers]
        except NotThereYet as error:
            self._missing = f" ({error})"
            return False
        return all(offer is not None and self._serves(offer.version, number) for offer in offers)

    def _serves(self, version: Version, number: int) -> bool:
        return version.number >= number and self._lineage.holds(version)


class ScoredColumns:
    """Reference, proximal, teacher, and the critic's values: each a consumer of its own, of a model of its own. See
    `Computed`."""

    waits_for = "kept groups"

    def __init__(
        self,
        context: RoleContext,
        *,
        name: str,
        columns: Sequence[str],
        score: Score,
        max_tokens: int,
        reads: Sequence[str] = (),
        follows: FollowedWeights | None = None,
        by_group: bool = False,
        returns: ModelReturn | None = None,
    ) -> None:
        """`name`: of the stage. `columns`: that it writes, one of the tokens and where `score` gives it one of the
        sample. `reads`: columns that the model finds, beside tokens and mask. `max_tokens`: budget of one forward pass;
        a longer row is one of its own. `follows`: the weights must be those that the batch begins with. `by_group`:
        rows of different groups never share a pass, so that no score depends on which groups came together. `returns`
        brings the model back when it is lost."""
        self._reads = tuple(reads)
        self._follows = follows
        self._context = context
        self.name = name
        self._columns = tuple(columns)
        self._score = score
        self._returns = returns
        self._lives = 0
        self._max_tokens = max_tokens
        self.sampler = whole_groups if by_group else token_budget(max_tokens, row_length)

    def begin_again(self) -> None:
        """See `Computed.begin_again`."""
        if self._follows is not None:
            self._follows.forget()

    async def compute(self, lease: Lease) -> Filled:
        """See `Computed.compute`."""
        while True:
            try:
                found = await self._computed(lease)
            except WorkerLost as lost:
                if self._returns is None:
                    raise
                await self._returns.after(lost)
            else:
                if not self._is_made_anew():
                    return found
                for ref in refs_in(found.columns):
                    self._context.refs.free(ref)

    def _is_made_anew(self) -> bool:
        """Whether it was since this was asked last: then it is as it was made, and what it kept is gone."""
        lives = 0 if self._returns is None else self._returns.lives
        if lives == self._lives:
            return False
        self._lives = lives
        self.begin_again()
        return True

    async def _computed(self, lease: Lease) -> Filled:
        rows = list(lease.rows)
        if self._returns is not None:
            await self._returns.settled()
        self._is_made_anew()
        if self._follows is not None:
            await self._follows.reach(self._context.flow.batch)
        of_row: dict[RowId, Sequence[Any]] = {}
        try:
            for places in plan_microbatches([row.header.length for row in rows], self._max_tokens):
                some = [rows[place] for place in places]
                asking = self._asked([to_train(row, row.header.spans, self._reads) for row in some])
                found = await freed_if_left(self._context.runtime, self._context.refs, asking, f"a pass of {self.name}")
                of_row |= {row.row_id: one for row, one in zip(some, found, strict=True)}
        except BaseException:
            for ref in refs_in(of_row):  # nobody else knows them
                self._context.refs.free(ref)
            raise
        return Filled(
            {
                column: {row_id: found[place] for row_id, found in of_row.items()}
                for place, column in enumerate(self._columns)
            }
        )

    async def _asked(self, rows: Sequence[RowToTrain]) -> Sequence[Sequence[Any]]:
        return await self._score(rows)
