"""The schedule of a run that trains on recorded rollouts: which batch a group enters is written already.

Batch k takes the groups that were recorded for it, in the order of their keys, and no others; a group's deadline is its
batch. Groups start in that order, at most `ahead` of them live, so those of batch k are among the first that are live:
while its places are not all taken, one of them is ready, running, or may start (`ahead` is at least a batch). There is
no staleness to bound here: how old a recorded token is was decided when it was recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.experience.records.recorded import RecordedRollouts
from headrace.experience.sample import GroupKey
from headrace.experience.schedule import Bound, Live, Schedule, ScheduleError


@dataclass(slots=True, kw_only=True)
class RecordedSchedule(Schedule):
    rollouts: RecordedRollouts

    @property
    def free_places(self) -> int:
        return self.rollouts.before(self.batch + 1) - self.rollouts.before(self.batch) - len(self._taken)

    def shut_by(self, version: int, *, has_bytes: bool = True) -> Bound | None:
        """As of every schedule; `version` does not count."""
        started = self.rollouts.before(self.batch) + len(self._taken) + self.live
        if self._spent or started >= self.rollouts.before(self.total_batches):
            return "prompts"
        if self.live >= self.ahead:
            return "ahead"
        return None if has_bytes or self.needs_more else "bytes"

    def start(self, key: GroupKey, version: int) -> int:
        if not self.may_start(version):
            raise ScheduleError(f"group {key} may not start: {self._state()}")
        deadline = self.rollouts.batch_of(key)
        self._add(Live(key, deadline))
        return deadline

    def _next(self) -> Live | None:
        while (first := self._candidates.first()) is not None:
            group = self._live[first.key]
            if group.deadline == self.batch:
                return group
            if group.deadline > self.batch:
                break
            self._candidates.discard(first.key)  # it never enters a batch: its own is trained
        return None

    def _rank(self, group: Live) -> tuple[Any, ...]:
        return group.deadline, group.key
