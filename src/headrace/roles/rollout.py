"""Rollout: starts groups as the gate lets them, and hands over what they bring."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from headrace.engines.protocol import Engine, EngineError
from headrace.experience.flow import Admission, Flow
from headrace.experience.group_journal import GroupJournal
from headrace.experience.sample import Group, GroupKey
from headrace.observe.tally import Tally
from headrace.roles.context import RoleContext
from headrace.roles.failures import FailureWatch
from headrace.rollout.episodes import EpisodeRunner
from headrace.weights.version import Version

NAME = "rollout"
Record = Callable[[Group], Awaitable[None]]


class RolloutRole:
    def __init__(
        self,
        context: RoleContext,
        engine: Engine,
        runner: EpisodeRunner,
        journal: GroupJournal,
        tally: Tally,
        failures: FailureWatch,
        *,
        min_samples: int,
        judges: Sequence[Engine] = (),
        counted: Callable[[], None] = lambda: None,
        record: Record | None = None,
    ) -> None:
        """`judges`: engines that rewards cannot do without. `counted` is called when the tally has changed, before the
        group counts as finished. `record`: awaited with each group that has ended."""
        self._context = context
        self._flow: Flow = context.flow
        self._engine = engine
        self._engines = (engine, *judges)
        self._runner = runner
        self._journal = journal
        self._tally = tally
        self._failures = failures
        self._min_samples = min_samples
        self._counted = counted
        self._record = record
        self._groups: dict[GroupKey, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until the run is finished. Leaving early (cancelled) ends every group that runs.

        Raises EngineError if an engine has died, and NothingToTrain: no prompt would come to anything (any more).
        """
        try:
            while not self._flow.is_finished:
                if (failure := self._failure()) is not None:
                    raise failure
                await self._end_overdue()
                version = self._engine.version
                admission = self._flow.admit(version.number)
                if admission is not None:
                    self._groups[admission.key] = self._context.runtime.spawn(
                        self._group(admission, version), f"group {admission.key}"
                    )
                    self._context.activity.changed()
                elif not self._flow.is_finished:
                    await self._context.changed(NAME, "the gate")
                self._reap()
        finally:
            await self._end(list(self._groups))

    async def _group(self, admission: Admission, version: Version) -> None:
        try:
            group = await self._runner.run_group(
                admission.key, admission.prompt, version, admission.deadline, admission.issue
            )
            self._tally.count((sample.response_tokens, sample.failure) for sample in group.samples)
            self._counted()
            if self._record is not None:
                await self._record(group)
            self._failures.look_at(group)
            if len(group.trainable) >= self._min_samples:
                self._flow.finish(*await self._journal.write(group))
            elif self._failure() is None and admission.key not in self._flow.overdue():
                failure = next((sample.failure for sample in group.samples if sample.failure), None)
                self._flow.hand_back(admission.key, f"failed: {_commonest_failure(group)}", failure)
        finally:
            self._flow.changed.notify()

    def _failure(self) -> EngineError | None:
        """Which engine died of what."""
        for engine in self._engines:
            if engine.failure is not None:
                whose = "engine" if engine is self._engine else "engine of a judge"
                error = EngineError(f"the {whose} died: {engine.failure}; resume the run to go on")
                error.__cause__ = engine.failure
                return error
        return None

    async def _end_overdue(self) -> None:
        for key in self._flow.overdue():
            await self._end([key])
            self._flow.hand_back(key, self._flow.reason_overdue)

    async def _end(self, keys: list[GroupKey]) -> None:
        tasks = [self._groups.pop(key) for key in keys if key in self._groups]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _reap(self) -> None:
        """Raise what a group's task raised: a fault of ours, since faults of samples end in the samples."""
        for key, task in list(self._groups.items()):
            if task.done():
                del self._groups[key]
                task.result()


def _commonest_failure(group: Group) -> str:
    kinds = Counter((sample.failure or sample.status.value).partition(":")[0] for sample in group.samples)
    return kinds.most_common(1)[0][0]
