"""Rollout: starts groups as the gate lets them, and hands over what they bring."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from headrace.engines.completions import NotServed
from headrace.engines.place import Place
from headrace.engines.pool import EnginePool
from headrace.experience.columns import FinishedGroup
from headrace.experience.failures import FailureKind, describe
from headrace.experience.flow import Admission, Flow
from headrace.experience.gate import Pace
from headrace.experience.header import GroupHeader
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.sample import Group, GroupKey
from headrace.observe.tally import Tally
from headrace.roles.context import RoleContext
from headrace.roles.failing_samples import FailureWatch
from headrace.roles.reissue import Losses
from headrace.runtime.workers import WorkerLost
from headrace.store import Receipt
from headrace.weights.version import Version

NAME = "rollout"
Ended = Group | GroupHeader
"""A group whose episodes have ended: whole, or what is known of it where others hold the rest."""
Record = Callable[[Any], Awaitable[None]]
"""Given a group that has ended, as its runner gives it."""


class GroupRunner(Protocol):
    """Plays groups: in this process, or on workers."""

    async def run_group(
        self, key: GroupKey, prompt: Prompt, start_version: Version, deadline: int, issue: int, place: Place | None
    ) -> Ended:
        """See `EpisodeRunner.run_group`. Raises WorkerLost too, where its worker ended with the group unfinished."""


class Journaling(Protocol):
    """Where groups are journaled that have ended; of those of a worker, where it has written them."""

    async def write(self, group: Any) -> tuple[FinishedGroup, Receipt]:
        """See `GroupJournal.write`. `group` as its runner gave it."""

    def let_go(self, key: GroupKey) -> None:
        """The group has ended: what was played of it, and not written, is nobody's."""


class RolloutRole:
    def __init__(
        self,
        context: RoleContext,
        engines: EnginePool,
        runner: GroupRunner,
        journal: Journaling,
        tally: Tally,
        failures: FailureWatch,
        *,
        min_samples: int,
        group_tokens: int = 0,
        judges: Sequence[EnginePool] = (),
        counted: Callable[[], None] = lambda: None,
        record: Record | None = None,
        losses: Losses | None = None,
        pace: Pace | None = None,
    ) -> None:
        """`group_tokens`: that a group samples at most. `judges`: engines that rewards cannot do without. `counted` is
        called when the tally has changed, before the group counts as finished. `record`: awaited with each group that
        has ended. `losses`: what `runner` goes by, if it loses workers. `pace`: told of each group when it
        starts and when it has ended."""
        self._context = context
        self._flow: Flow = context.flow
        self._engines = engines
        self._judges = tuple(judges)
        self._group_tokens = group_tokens
        self._runner = runner
        self._journal = journal
        self._tally = tally
        self._failures = failures
        self._min_samples = min_samples
        self._counted = counted
        self._record = record
        self._losses = losses or Losses()
        self._pace = pace or Pace()
        self._groups: dict[GroupKey, asyncio.Task[None]] = {}
        self._ended: deque[GroupKey] = deque()
        """Groups whose task has ended, and was not looked at."""

    async def run(self) -> None:
        """Until the run is finished. Leaving early (cancelled) ends every group that runs. Raises NothingToTrain: no
        prompt would come to anything."""
        try:
            while not self._flow.is_finished:
                await self._end_overdue()
                await self._end_left()
                place = self._engines.admit(lambda number: self._flow.shut_by(number) is None, self._group_tokens)
                admission = self._admit(place)
                if admission is not None and place is not None:
                    self._begin(admission, place)
                    await asyncio.sleep(0)  # it is its engine's load before the next one is admitted
                elif not self._flow.is_finished:
                    await self._context.changed(NAME, "the gate")
                self._reap()
        finally:
            await self._end(list(self._groups))

    def _admit(self, place: Place | None) -> Admission | None:
        if place is not None:
            return self._flow.admit(place.version.number)
        number = self._engines.version.number
        # With the gate shut, the flow still says if there is no use in going on; with no engine there is nothing to
        # say.
        return None if self._flow.shut_by(number) is None else self._flow.admit(number)

    def _begin(self, admission: Admission, place: Place) -> None:
        key = admission.key
        task = self._context.runtime.spawn(self._group(admission, place), f"group {key}")
        self._groups[key] = task
        self._context.activity.changed()

    async def _group(self, admission: Admission, place: Place) -> None:
        key, clock = admission.key, self._context.runtime.clock
        self._pace.begin(clock.now(), key)
        try:
            again: tuple[Admission, Place] | None = admission, place
            while again is not None:
                try:
                    return await self._play(*again)
                except (NotServed, WorkerLost) as error:
                    again = self._issue_again(again[0], error)
        finally:
            self._pace.end(clock.now(), key)
            self._journal.let_go(key)
            # The task is done when whoever is woken by this comes to it.
            self._ended.append(key)
            self._flow.changed.notify()

    async def _play(self, admission: Admission, place: Place) -> None:
        """Raises NotServed and WorkerLost: nothing came of it, through no fault of its samples."""
        key = admission.key
        with self._engines.taken(place):
            group = await self._runner.run_group(
                key, admission.prompt, place.version, admission.deadline, admission.issue, place
            )
        self._tally.count((sample.response_tokens, sample.failure) for sample in group.samples)
        self._counted()
        if self._record is not None:
            await self._record(group)
        self._failures.look_at(group)
        self._losses.ended(key)
        if group.trainable_episodes >= self._min_samples:
            self._flow.finish(*await self._journal.write(group))
        elif self._are_there() and self._flow.runs(key) and key not in self._flow.overdue():
            failure = next((sample.failure for sample in group.samples if sample.failure), None)
            self._flow.hand_back(key, f"failed: {_commonest_failure(group)}", failure)

    def _issue_again(self, admission: Admission, error: NotServed | WorkerLost) -> tuple[Admission, Place] | None:
        """The group and its engine, if it keeps its place; None if it starts through the gate, or not at all."""
        key, flow = admission.key, self._flow
        if key in flow.overdue() or not flow.runs(key):
            return None  # whoever ends those hands it back, or has it issued again
        if isinstance(error, WorkerLost) and self._losses.lost(key):
            self._losses.ended(key)
            flow.hand_back(key, f"failed: {FailureKind.WORKER_LOST}", describe(FailureKind.WORKER_LOST, str(error)))
            return None
        self._context.report("reissued", {"prompt": admission.prompt.prompt_id, "message": str(error)})
        place = self._engines.admit(lambda number: flow.may_keep_place(key, number), self._group_tokens)
        again = flow.issue_again(key, None if place is None else place.version.number)
        return None if again is None or place is None else (again, place)

    def _are_there(self) -> bool:
        """Whether there are engines still, or they come back. Else a group failed for that, and it is for the engine
        watch to end the run."""
        return all(pool.failure is None for pool in (self._engines, *self._judges))

    async def _end_overdue(self) -> None:
        for key in self._flow.overdue():
            await self._end([key])
            if self._flow.runs(key):  # the run may have gone back meanwhile
                self._flow.hand_back(key, self._flow.reason_overdue)

    async def _end_left(self) -> None:
        """Of groups that have no place any more since the run went back."""
        for key in self._flow.left():
            await self._end([key])
            self._losses.ended(key)
            self._flow.has_ended(key)

    async def _end(self, keys: list[GroupKey]) -> None:
        tasks = [self._groups.pop(key) for key in keys if key in self._groups]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _reap(self) -> None:
        """Raise what a group's task raised: a fault of ours, since faults of samples end in the samples."""
        while self._ended:
            key = self._ended.popleft()
            task = self._groups.get(key)
            if task is not None and task.done():
                del self._groups[key]
                task.result()


def _commonest_failure(group: Ended) -> str:
    """Of the samples that are left out; of all, if none is."""
    those = [sample for sample in group.samples if not sample.is_trainable] or group.samples
    kinds = Counter((sample.failure or sample.status.value).partition(":")[0] for sample in those)
    return kinds.most_common(1)[0][0]
