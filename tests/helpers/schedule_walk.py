"""Everything that can happen around a schedule, in any order: groups end, engines load versions and die, the run
crashes. There is no clock: whatever can come next may come next."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from headrace.experience.sample import GroupKey
from headrace.experience.schedule import OnDeadline, Schedule


@dataclass(frozen=True)
class Circumstances:
    prompts_per_batch: int
    max_staleness: int
    total_batches: int
    on_deadline: OnDeadline
    prompts: int
    """Length of the dataset: the run ends when it is spent."""
    ahead: int
    surplus: int = 0
    engines: int = 1
    step: float = 1.0
    """How likely a step is to come next, against the end of a group."""
    load: float = 1.0
    """Likewise, that an engine takes the newest version."""
    in_turn: bool = False
    """Groups start as soon as they may, end in the order in which they were started, and engines have each version
    before the next."""
    drop_share: float = 0.0
    """Groups that the filter drops."""
    fail_share: float = 0.0
    """Groups that fail, and are tried again."""
    engine_death_share: float = 0.0
    """Chance for each step that an engine dies, with all that runs on it, and comes back with the newest version."""
    restore_share: float = 0.0
    """Chance for each step that the run crashes after it and is restored from an earlier commit."""
    kept_share: float = 0.0
    """Groups that ran then, and of which all tokens were kept: they go on, if they may."""
    commit_every: int = 1
    room: float = math.inf
    """Largest groups that the table has the bytes for. So much is reserved for each that runs; one that has finished
    takes between nothing and all of that."""
    seed: int = 0


@dataclass(slots=True)
class _Group:
    key: GroupKey
    version: int
    deadline: int
    engine: int
    size: float = 1.0


@dataclass
class Outcome:
    finished: bool = False
    trained: list[tuple[GroupKey, int, int]] = field(default_factory=list)
    """(group, version where it started, batch), of the last time that it was trained."""
    batch_sizes: list[int] = field(default_factory=list)
    handed_back: int = 0
    """By the schedule's own decision."""
    refused: int = 0
    """Groups that did not go on, though none of their tokens is of a version that is gone."""
    late: int = 0
    fullest: float = 0.0
    """Most that the table held, reserved bytes included, in largest groups."""

    @property
    def worst_staleness(self) -> int:
        return max((batch - version for _, version, batch in self.trained), default=0)


class Walk:
    """From the begin to the end, or to where nothing can happen any more."""

    def __init__(self, around: Circumstances, make: Callable[..., Schedule] = Schedule) -> None:
        self.around = around
        self.outcome = Outcome()
        self._make = make
        self._chance = random.Random(around.seed)
        self._sizes = random.Random(around.seed)
        self._position = 0
        self._again: deque[GroupKey] = deque()
        self._running: dict[GroupKey, _Group] = {}
        self._ready: dict[GroupKey, _Group] = {}
        self._trained: dict[GroupKey, tuple[_Group, int]] = {}
        self._loaded = [0] * around.engines
        self._published = self._commit = 0
        self.schedule = self._new_schedule()

    def run(self) -> Outcome:
        while not self.schedule.is_finished and (events := self._possible()):
            what = self._chance.choices([event for event, _ in events], [weight for _, weight in events])
            what[0]()
            self._settle()
        self.outcome.finished = self.schedule.is_finished
        self.outcome.trained = [(key, group.version, batch) for key, (group, batch) in self._trained.items()]
        return self.outcome

    def _new_schedule(self) -> Schedule:
        around = self.around
        return self._make(
            prompts_per_batch=around.prompts_per_batch,
            max_staleness=around.max_staleness,
            total_batches=around.total_batches,
            on_deadline=around.on_deadline,
            ahead=around.ahead,
            surplus=around.surplus,
        )

    def _possible(self) -> list[tuple[Callable[[], None], float]]:
        """What can come next, each with its weight."""
        events: list[tuple[Callable[[], None], float]] = []
        engines = [engine for engine in range(self.around.engines) if self._may_start(engine)]
        if engines:
            start = lambda: self._start(self._chance.choice(engines))  # noqa: E731
            if self.around.in_turn:
                return [(start, 1.0)]
            events.append((start, 2.0))
        if self._running:
            events.append((self._end, 1.0))
        behind = [engine for engine, version in enumerate(self._loaded) if version < self._published]
        if behind:
            events.append((lambda: self._load(self._chance.choice(behind)), self.around.load))
        if self.schedule.is_sealed and not (behind and self.around.in_turn):
            events.append((self._step, self.around.step))
        return events

    def _settle(self) -> None:
        """All that follows at once from the last event."""
        for placement in self.schedule.take():
            self._trained[placement.key] = self._ready.pop(placement.key), placement.batch
            self.outcome.late += placement.is_late
        for key in self.schedule.overdue():
            self.outcome.handed_back += 1
            self._hand_back(key)

    def _may_start(self, engine: int) -> bool:
        return self.schedule.may_start(self._loaded[engine], has_bytes=self._held() + 1 <= self.around.room)

    def _start(self, engine: int) -> None:
        if self._again:
            key = self._again.popleft()
        elif self._position < self.around.prompts:
            key = GroupKey(0, self._position, 0)
            self._position += 1
        else:
            self.schedule.dataset_spent()
            return
        version = self._loaded[engine]
        self._running[key] = _Group(key, version, self.schedule.start(key, version), engine)
        self.outcome.fullest = max(self.outcome.fullest, self._held())

    def _held(self) -> float:
        """Bytes in the table, in largest groups."""
        taken = (self._trained[key][0] for key in self.schedule.taken)
        return sum(group.size for group in (*self._running.values(), *self._ready.values(), *taken))

    def _end(self) -> None:
        key = next(iter(self._running)) if self.around.in_turn else self._chance.choice(list(self._running))
        chance = self._chance.random()
        if chance < self.around.fail_share:
            self._hand_back(key)
            return
        group = self._running.pop(key)
        if chance < self.around.fail_share + self.around.drop_share:
            self.schedule.drop(key)
            return
        group.size = self._sizes.random()
        self._ready[key] = group
        self.schedule.ready(key)

    def _load(self, engine: int) -> None:
        self._loaded[engine] = self._published

    def _hand_back(self, key: GroupKey) -> None:
        self.schedule.drop(key)
        self._running.pop(key, None)
        self._ready.pop(key, None)
        self._again.append(key._replace(attempt=key.attempt + 1))
        self.schedule.dataset_refilled()

    def _step(self) -> None:
        self.outcome.batch_sizes.append(len(self.schedule.taken))
        for key in self.schedule.step():
            self.outcome.handed_back += 1
            self._hand_back(key)
        self._published = self.schedule.batch
        if self._published % self.around.commit_every == 0:
            self._commit = self._published
        if self._chance.random() < self.around.engine_death_share:
            self._kill(self._chance.randrange(self.around.engines))
        if self._chance.random() < self.around.restore_share and not self.schedule.is_finished:
            self._restore()

    def _kill(self, engine: int) -> None:
        for key in [key for key, group in self._running.items() if group.engine == engine]:
            self._hand_back(key)
        self._load(engine)

    def _restore(self) -> None:
        """Crash now: what the ledger holds survives, and versions after the commit are gone."""
        back = [group for group, batch in self._trained.values() if batch >= self._commit]
        for group in back:
            del self._trained[group.key]
        live = back + list(self._ready.values())
        begun, self._running = list(self._running.values()), {}
        kept = [group for group in begun if self._chance.random() < self.around.kept_share]
        self._again.extendleft(group.key for group in begun if group not in kept)
        self.schedule = self._new_schedule()
        self.schedule.restore(self._commit, [(group.key, group.deadline) for group in live])
        self._ready = {group.key: group for group in live}
        for group in live:
            self.schedule.ready(group.key)
        self._published = self._commit
        self._loaded = [self._commit] * self.around.engines
        for group in sorted(kept, key=lambda group: group.version):
            self._go_on(group)
        del self.outcome.batch_sizes[self._commit :]

    def _go_on(self, group: _Group) -> None:
        """From tokens of the version that it started on."""
        oldest = min(group.version, self._commit)
        if self.schedule.may_go_on(oldest):
            deadline = self.schedule.go_on(group.key, oldest)
            self._running[group.key] = replace(group, version=oldest, deadline=deadline)
        else:
            self.outcome.refused += group.version <= self._commit
            self._again.appendleft(group.key)
