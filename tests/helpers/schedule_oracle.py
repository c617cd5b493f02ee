"""The schedule as it is plainest: every decision looks at every group. The oracle of `experience/schedule.py`, whose
docstring says what is decided, and why.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from headrace.experience.records.recorded import RecordedRollouts
from headrace.experience.sample import GroupKey
from headrace.experience.schedule import Bound, OnDeadline, Placement, ScheduleError, WentBack


@dataclass(slots=True)
class Live:
    key: GroupKey
    deadline: int
    arrival: int | None = None
    """Order in which the group became ready; None while it runs."""


@dataclass(slots=True)
class PlainSchedule:
    """Pure bookkeeping: events in, decisions out. Knows no clock, no tensors and no I/O."""

    prompts_per_batch: int
    max_staleness: int
    total_batches: int
    on_deadline: OnDeadline
    ahead: int
    """Most live groups."""
    surplus: int = 0
    """Groups that are started beyond what the batches hold (`drop` only)."""
    batch: int = 0
    """k: the batch being composed."""
    _taken: dict[GroupKey, int] = field(default_factory=dict)
    _live: dict[GroupKey, Live] = field(default_factory=dict)
    _arrivals: int = 0
    _spent: bool = False

    def __post_init__(self) -> None:
        if self.prompts_per_batch < 1 or self.max_staleness < 0 or self.total_batches < 0:
            raise ValueError(
                f"prompts_per_batch {self.prompts_per_batch} (at least 1), max_staleness {self.max_staleness} "
                f"(at least 0), total_batches {self.total_batches} (at least 0): out of range"
            )
        if self.surplus < 0 or (self.surplus and self.on_deadline != "drop"):
            raise ValueError(f"surplus is {self.surplus} with on_deadline {self.on_deadline}: only drop can shed any")
        if self.ahead < self.prompts_per_batch:
            raise ValueError(
                f"ahead is {self.ahead}, less than prompts_per_batch ({self.prompts_per_batch}): "
                "a batch could never fill"
            )

    @property
    def live(self) -> int:
        return len(self._live)

    @property
    def ready_groups(self) -> int:
        return sum(group.arrival is not None for group in self._live.values())

    @property
    def running_groups(self) -> int:
        return self.live - self.ready_groups

    @property
    def free_places(self) -> int:
        return self.prompts_per_batch - len(self._taken)

    @property
    def taken(self) -> tuple[GroupKey, ...]:
        """Groups of the batch being composed, in the order in which they entered."""
        return tuple(self._taken)

    @property
    def is_sealed(self) -> bool:
        """True once no further group enters the batch: it is full, or the dataset ended and nothing is live."""
        return not self.free_places or (self._spent and not self._live and bool(self._taken))

    @property
    def is_finished(self) -> bool:
        """True once every batch is trained, or nothing is left to train."""
        return self.batch >= self.total_batches or (self._spent and not self._live and not self._taken)

    @property
    def _first_open(self) -> int:
        """The first batch that a group may still enter."""
        return self.batch + 1 if self.is_sealed else self.batch

    @property
    def needs_more(self) -> bool:
        """Whether the batch could not be filled by all groups that are live."""
        return self.live < self.free_places

    def may_start(self, version: int, *, has_bytes: bool = True) -> bool:
        """Whether a group may start now on an engine that has loaded version number `version`. `has_bytes`: whether the
        table has them for one group more; if not, only one that the batch at hand needs may start."""
        return self.shut_by(version, has_bytes=has_bytes) is None

    def shut_by(self, version: int, *, has_bytes: bool = True) -> Bound | None:
        """What keeps a group from starting now; None if it may. See `may_start`."""
        place = self.batch * self.prompts_per_batch + len(self._taken) + self.live
        if self._spent or place >= self.total_batches * self.prompts_per_batch:
            return "prompts"
        due = (version + self.max_staleness + 1) * self.prompts_per_batch + self.surplus
        if place >= due or version + self.max_staleness < self._first_open:
            return "staleness"
        if self.live >= self.ahead:
            return "ahead"
        return None if has_bytes or self.needs_more else "bytes"

    def start(self, key: GroupKey, version: int) -> int:
        """Admit a group; returns its deadline. Raises ScheduleError unless `may_start`."""
        if not self.may_start(version):
            raise ScheduleError(f"group {key} may not start on version {version}: {self._state()}")
        self._add(Live(key, version + self.max_staleness))
        return version + self.max_staleness

    def ready(self, key: GroupKey) -> None:
        """The group has finished, and was kept."""
        group = self._of(key)
        if group.arrival is not None:
            raise ScheduleError(f"group {key} is ready already")
        group.arrival = self._arrivals
        self._arrivals += 1

    def drop(self, key: GroupKey) -> None:
        """The group failed, was filtered out or was handed back: its place is free again."""
        self._of(key)
        del self._live[key]

    def reissue(self, key: GroupKey, version: int | None) -> int | None:
        """The running group begins again, from no tokens, on an engine that has loaded version number `version`."""
        group = self._of(key)
        if group.arrival is not None:
            raise ScheduleError(f"group {key} is ready: only one that runs is issued again")
        if version is None or version + self.max_staleness < group.deadline:
            del self._live[key]
            return None
        group.deadline = version + self.max_staleness
        return group.deadline

    def dataset_spent(self) -> None:
        """No further group will start. The last batch may then be short."""
        self._spent = True

    def dataset_refilled(self) -> None:
        """A group was handed back after the dataset had ended: it will start again."""
        self._spent = False

    def take(self) -> list[Placement]:
        """Ready groups that enter the batch now, in order. Call after every event."""
        placements: list[Placement] = []
        while self.free_places and self.batch < self.total_batches:
            group = self._next()
            if group is None:
                break
            del self._live[group.key]
            self._taken[group.key] = group.deadline
            placements.append(Placement(group.key, self.batch, group.deadline))
        return placements

    def overdue(self) -> list[GroupKey]:
        """The groups that, under `drop`, can enter no batch any more and must be handed back; the caller drops them.

        Due at the batch being composed, they are overdue as soon as it is sealed.
        """
        if self.on_deadline != "drop":
            return []
        return [group.key for group in self._live.values() if group.deadline < self._first_open]

    def step(self) -> list[GroupKey]:
        """The batch was trained: compose the next one. Returns those that are `overdue` now."""
        if not self.is_sealed:
            raise ScheduleError(f"batch {self.batch} was stepped with free places: {self._state()}")
        self.batch += 1
        self._taken.clear()
        return self.overdue()

    def restore(self, batch: int, live: Iterable[tuple[GroupKey, int]]) -> None:
        """Continue from a commit: `batch` is next, and these finished groups (key, deadline) are live again.

        They become `ready` once more through it. Groups that were running start again through `start`, and get a
        new deadline. Raises ScheduleError if, under `wait`, the deadlines cannot all be met: the ledger then holds
        groups that this schedule never admitted. (Those that it did admit fit: a group trained in a batch j >= k
        had a deadline >= j, so the groups of the lost batches and the live ones together keep the invariant at k.)
        """
        if self._live or self._taken:
            raise ScheduleError("only a new schedule can be restored")
        self.batch = batch
        for key, deadline in live:
            self._add(Live(key, deadline))
        if self.on_deadline == "wait":
            self.check()

    def go_back(
        self, batch: int, trained: Iterable[tuple[GroupKey, int]], finished: Container[GroupKey] = ()
    ) -> WentBack:
        """Compose `batch` again, from its commit; `trained`: the groups of the batches since."""
        if batch > self.batch:
            raise ScheduleError(f"batch {batch} is not behind batch {self.batch}: nobody can go back to it")
        newer = [
            group
            for group in self._live.values()
            if group.arrival is None and group.key not in finished and group.deadline > batch + self.max_staleness
        ]
        newer.sort(key=lambda group: group.deadline)
        again = dict(trained) | self._taken
        self.batch = batch
        self._taken.clear()
        for key, deadline in again.items():
            self._add(Live(key, deadline))
        order = list(self._live)
        every = dict(self._live)
        for group in newer:
            del self._live[group.key]
        try:
            if self.on_deadline == "wait":
                self.check()
        except ScheduleError:
            self._live = every
            raise
        earlier, ended = {}, []
        for group in newer:
            self._live[group.key] = Live(group.key, batch + self.max_staleness)
            try:
                if self.on_deadline == "wait":
                    self.check()
                earlier[group.key] = batch + self.max_staleness
            except ScheduleError:
                del self._live[group.key]
                ended.append(group.key)
        self._live = {key: self._live[key] for key in order if key in self._live}
        return WentBack(earlier, tuple(ended))

    def check(self) -> None:
        """Raises ScheduleError if the invariant of `wait` does not hold."""
        for deadline, due in self._due_counts():
            room = (deadline - self.batch) * self.prompts_per_batch + self.free_places
            if due > room:
                raise ScheduleError(f"{due} groups are due by batch {deadline}, which has room for {room}")

    def _next(self) -> Live | None:
        candidates = [group for group in self._live.values() if group.arrival is not None]
        candidates.sort(key=lambda group: (group.deadline, group.arrival))
        if self.on_deadline != "wait":
            return candidates[0] if candidates else None
        # A deadline that is full lets nothing pass that is due later than it.
        full = min(
            (
                deadline
                for deadline, due in self._due_counts()
                if due > (deadline - self.batch) * self.prompts_per_batch + self.free_places - 1
            ),
            default=None,
        )
        for group in candidates:
            if full is None or group.deadline <= full:
                return group
        return None

    def _due_counts(self) -> list[tuple[int, int]]:
        """(d, N(d)) at every d where N grows, which are the only ones that can bind, since room grows with d."""
        deadlines: list[int] = []
        for group in self._live.values():
            insort(deadlines, max(group.deadline, self.batch))
        return [
            (deadline, place + 1)
            for place, deadline in enumerate(deadlines)
            if place + 1 == len(deadlines) or deadlines[place + 1] != deadline
        ]

    def _add(self, group: Live) -> None:
        if group.key in self._live or group.key in self._taken:
            raise ScheduleError(f"group {group.key} is live already")
        self._live[group.key] = group

    def _of(self, key: GroupKey) -> Live:
        group = self._live.get(key)
        if group is None:
            raise ScheduleError(f"group {key} is not live: {self._state()}")
        return group

    def _state(self) -> str:
        return (
            f"batch {self.batch} of {self.total_batches}, {len(self._taken)} of {self.prompts_per_batch} places "
            f"taken, {self.live} live of at most {self.ahead}, dataset {'spent' if self._spent else 'open'}"
        )


@dataclass(slots=True, kw_only=True)
class PlainRecordedSchedule(PlainSchedule):
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
        ready = [group for group in self._live.values() if group.arrival is not None and group.deadline == self.batch]
        return min(ready, key=lambda group: group.key, default=None)
