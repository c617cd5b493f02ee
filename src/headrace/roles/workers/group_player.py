"""Plays groups for a rollout worker, journals them, and keeps their columns."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from headrace.engines.place import Place
from headrace.experience.columns import SAMPLE_COLUMNS, group_of
from headrace.experience.header import GroupHeader, header_of
from headrace.experience.records.codec import encode_group
from headrace.experience.records.group_journal import GroupJournal
from headrace.experience.sample import Group, GroupKey, SampleStatus
from headrace.rewards.reward_pool import Rewards
from headrace.roles.workers.rollout_types import Assignment, Played
from headrace.rollout.evaluation import PromptRunner
from headrace.rollout.filters import Filter, drop_reason
from headrace.runtime.off_loop import LANE
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.workers import Host

T = TypeVar("T")


BEAT_S = 20.0
"""A group that is played says at least so often that it is."""
_LOOKED_AT = 2
"""With each group that is finished, so many of those before: what was freed is forgotten as fast as more comes."""
TRAINING = ""
"""Among runners, the name of training; held-out sets have their own."""


class GroupPlayer:
    """What a worker that plays groups does, however it was built. Leaving a stream of `play` or `answer` ends the
    episodes."""

    def __init__(self, host: Host, filters: Sequence[Filter], *, min_samples: int, keeps_failed: bool) -> None:
        """See `RolloutSpec`. Whoever builds it has `_runners` and `_journal` before a group is played."""
        self._host = host
        self._filters = tuple(filters)
        self._min_samples = min_samples
        self._keeps_failed = keeps_failed
        self._runners: dict[str, PromptRunner] = {}
        """By the held-out set, and `TRAINING`."""
        self._journal: GroupJournal | None = None
        self._scored_by: list[Rewards] = []
        """Of this worker alone: what they took is told with each group."""
        self._told: Counter[str] = Counter()
        """Calls to rewards that were told of."""
        self._kept: dict[tuple[GroupKey, int], tuple[Ref, ...]] = {}
        """Of groups that were journaled, by issue: those of which nothing was freed, and a few more."""

    async def play(self, given: Assignment) -> AsyncGenerator[Played | None, None]:
        """Play a group: None now and then, and once it is scored and durable, what came of it. Raises NotServed,
        DiskFull, StoreError, CodecError."""
        async with aclosing(self._beating(self._played(given), f"group {given.key}")) as items:
            async for item in items:
                yield item

    async def answer(self, given: Assignment, held_out: str) -> AsyncGenerator[bytes | None, None]:
        """Play a prompt of a held-out set: None now and then, then the group, encoded. Raises NotServed, CodecError."""
        async with aclosing(self._beating(self._answered(given, held_out), f"{held_out} {given.key}")) as items:
            async for item in items:
                yield item

    async def let_go(self, key: GroupKey, issue: int) -> None:
        """The group was ended: if it was finished all the same, nobody has heard of its columns."""
        for ref in self._kept.pop((key, issue), ()):
            self._host.free(ref)

    async def judge(self, header: GroupHeader, samples: Sequence[Ref], batch: int) -> tuple[str | None, list[str]]:
        """Why the finished group is dropped, None if it is kept; and what filters failed with. Raises RefLost."""
        columns = [await self._host.get(ref) for ref in samples]
        whole = cache(lambda: group_of(_Loaded(samples, columns), header, samples))
        faults: list[str] = []
        return drop_reason(self._filters, header, whole, batch, faults.append), faults

    async def _played(self, given: Assignment) -> Played:
        group = await self._run(given, TRAINING)
        failed = None
        if self._keeps_failed:
            those = tuple(sample for sample in group.samples if sample.status is SampleStatus.FAILED)
            if those:
                failed = await self._host.compute(LANE, encode_group, replace(group, samples=those))
        if group.trainable_episodes < self._min_samples:
            return Played(header_of(group), (), None, failed, self._reward_calls())
        assert self._journal is not None
        finished, receipt = await self._journal.write(group)
        self._keep(given, finished.refs)
        return Played(finished.header, finished.refs, receipt, failed, self._reward_calls())

    def _keep(self, given: Assignment, refs: tuple[Ref, ...]) -> None:
        for known in list(islice(self._kept, _LOOKED_AT)):
            if not self._has(self._kept[known][0]):
                del self._kept[known]
            else:  # it is looked at again after all others
                self._kept[known] = self._kept.pop(known)
        if refs:
            self._kept[given.key, given.issue] = refs

    def _has(self, ref: Ref) -> bool:
        try:
            self._host.refs.get(ref, ())
        except RefLost:
            return False
        return True

    async def _answered(self, given: Assignment, held_out: str) -> bytes:
        return await self._host.compute(LANE, encode_group, await self._run(given, held_out))

    async def _run(self, given: Assignment, name: str) -> Group:
        place = Place(given.version, given.home, given.only)
        return await self._runners[name].run_group(
            given.key, given.prompt, given.version, given.deadline, given.issue, place
        )

    async def _beating(self, work: Coroutine[Any, Any, T], what: str) -> AsyncGenerator[T | None, None]:
        task = self._host.spawn(work, what)
        try:
            while not task.done():
                try:
                    await self._host.clock.wait_for(asyncio.shield(task), BEAT_S, what)
                except WaitTimeout:
                    if not task.done():
                        yield None
            yield task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _reward_calls(self) -> dict[str, int]:
        """That have ended since the last group: of those who score here."""
        now: Counter[str] = Counter()
        for pool in self._scored_by:
            now.update(pool.times.counts)
        new = now - self._told
        self._told = now
        return dict(new)


class _Loaded:
    """`Refs` of columns that were read before."""

    def __init__(self, refs: Sequence[Ref], columns: Sequence[Mapping[str, Any]]) -> None:
        self._columns = dict(zip(refs, columns, strict=True))

    def put(self, columns: Mapping[str, Any]) -> Ref:
        raise NotImplementedError

    def get(self, ref: Ref, names: Any = SAMPLE_COLUMNS) -> Mapping[str, Any]:
        """See `Refs.get`."""
        if ref not in self._columns:
            raise RefLost(ref)
        return self._columns[ref]

    def free(self, ref: Ref) -> None:
        """They go with this object."""
