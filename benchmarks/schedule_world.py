"""A discrete-event world around the schedule: engines, a trainer, a dataset, and what goes wrong with them.

Drives `Schedule` alone, with no other part of Headrace: times are numbers, nothing is generated or trained. The
property tests and the schedule's benchmark share it.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.experience.sample import GroupKey
from headrace.experience.schedule import OnDeadline, Schedule


@dataclass(frozen=True)
class World:
    """The circumstances of a run. Times are in units of the mean generation time of a group."""

    prompts_per_batch: int
    max_staleness: int
    total_batches: int
    on_deadline: OnDeadline
    prompts: int
    """Length of the dataset: the run ends when it is spent."""
    ahead: int
    engines: int = 1
    slots: int | None = None
    """Samples that all engines decode at once, the others wait for a slot; unless given, as many as are admitted."""
    samples: int = 1
    """Of a group, each with a generation time of its own; the group ends with its last."""
    tail: float = 1.0
    """Sigma of the log-normal generation time: 0 is constant, 2 a very heavy tail."""
    step_time: float = 0.1
    load_time: float = 0.05
    """Longest time that an engine takes to load a published version."""
    drop_share: float = 0.0
    """Groups that the filter drops."""
    fail_share: float = 0.0
    """Groups that fail, and are tried again."""
    engine_death_share: float = 0.0
    """Chance for each step that an engine dies, with all that runs on it, and comes back with the newest version."""
    restore_share: float = 0.0
    """Chance for each step that the run crashes after it and is restored from an earlier commit."""
    commit_every: int = 1
    surplus: int = 0
    """Groups started beyond what the batches hold (`drop` only)."""
    room: float = math.inf
    """Largest groups that the table has the bytes for. So much is reserved for each that runs; one that has finished
    takes between nothing and all of that."""
    seed: int = 0


@dataclass
class Outcome:
    finished: bool = False
    time: float = 0.0
    trainer_idle: float = 0.0
    trained: list[tuple[GroupKey, int, int]] = field(default_factory=list)
    """(group, version where it started, batch), of the last time that it was trained."""
    batch_sizes: list[int] = field(default_factory=list)
    handed_back: int = 0
    """By the schedule's own decision."""
    filtered: int = 0
    failed: int = 0
    late: int = 0
    stale_share: Counter[int] = field(default_factory=Counter)
    """Groups by the batches that they were trained past their deadline."""
    decoding: float = 0.0
    """Time that the trained samples took to decode, added up: their tokens."""
    aged: float = 0.0
    """The same, times the staleness of what was decoded then."""
    fullest: float = 0.0
    """Most that the table held, reserved bytes included, in largest groups."""

    @property
    def mean_staleness(self) -> float:
        """Of trained tokens, decoded at an even pace, with weights swapped in flight."""
        return self.aged / self.decoding if self.decoding else 0.0

    @property
    def worst_staleness(self) -> int:
        return max((batch - version for _, version, batch in self.trained), default=0)


@dataclass
class _Group:
    key: GroupKey
    version: int
    deadline: int
    engine: int
    left: int
    """Samples that have not ended."""
    decoding: float = 0.0
    versions: float = 0.0
    """The integral of the engine's version over the time that its samples were decoded."""
    size: float = 1.0
    """Of the largest group; once it has ended, as it was measured."""


@dataclass
class _VersionMeter:
    """The integral of an engine's version over time."""

    total: float = 0.0
    """Up to `since`."""
    version: int = 0
    since: float = 0.0

    def until(self, now: float) -> float:
        return self.total + (now - self.since) * self.version

    def change(self, now: float, version: int) -> None:
        self.total, self.since, self.version = self.until(now), now, version


class WorldRun:
    """One run of a world to its end, or to a standstill."""

    def __init__(self, world: World, make: Callable[..., Schedule] = Schedule) -> None:
        self.world = world
        self.random = random.Random(world.seed)
        self._sizes = random.Random(world.seed)
        self.make = make
        self.outcome = Outcome()
        self.time = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._generation = 0
        """Counts restores: events of before a crash do nothing."""
        self._position = 0
        self._again: deque[GroupKey] = deque()
        self._running: dict[GroupKey, _Group] = {}
        self._ready: dict[GroupKey, _Group] = {}
        self._trained: dict[GroupKey, tuple[_Group, int]] = {}
        self._loaded = [0] * world.engines
        self._waiting: deque[_Group] = deque()
        """An entry for each sample that has no slot yet."""
        self._decoding = 0
        self._meters = [_VersionMeter() for _ in range(world.engines)]
        self._published = 0
        self._training = False
        self._idle_since = 0.0
        self._commit = 0
        self.schedule = self._new_schedule()

    def run(self) -> Outcome:
        self._settle()
        limit = 200 * self.world.total_batches * self.world.prompts_per_batch + 100_000
        while self._events and not self.schedule.is_finished and limit:
            limit -= 1
            self.time, _, event = heapq.heappop(self._events)
            event()
            self._settle()
        self.outcome.finished = self.schedule.is_finished
        self.outcome.time = self.time
        self.outcome.trained = [(key, group.version, batch) for key, (group, batch) in self._trained.items()]
        return self.outcome

    def _new_schedule(self) -> Schedule:
        world = self.world
        return self.make(
            prompts_per_batch=world.prompts_per_batch,
            max_staleness=world.max_staleness,
            total_batches=world.total_batches,
            on_deadline=world.on_deadline,
            ahead=world.ahead,
            surplus=world.surplus,
        )

    def _after(self, delay: float, event: Callable[[], None]) -> None:
        generation = self._generation
        self._order += 1
        heapq.heappush(
            self._events,
            (self.time + delay, self._order, lambda: event() if generation == self._generation else None),
        )

    def _settle(self) -> None:
        """All that follows at once from the last event."""
        schedule = self.schedule
        self._start()
        for placement in schedule.take():
            group = self._ready.pop(placement.key)
            self._trained[group.key] = (group, placement.batch)
            self.outcome.late += placement.is_late
            self.outcome.stale_share[max(0, placement.batch - placement.deadline)] += 1
            self.outcome.decoding += group.decoding
            self.outcome.aged += placement.batch * group.decoding - group.versions
        for key in schedule.overdue():
            self.outcome.handed_back += 1
            self._hand_back(key)
        self._start()
        if schedule.is_sealed and not self._training:
            self._training = True
            self.outcome.trainer_idle += self.time - self._idle_since
            self._after(self.world.step_time, self._step)

    def _start(self) -> None:
        engines = sorted(range(self.world.engines), key=lambda engine: -self._loaded[engine])
        for engine in engines:
            while self.schedule.may_start(self._loaded[engine], has_bytes=self._held() + 1 <= self.world.room):
                if self._again:
                    key = self._again.popleft()
                elif self._position < self.world.prompts:
                    key = GroupKey(0, self._position, 0)
                    self._position += 1
                else:
                    self.schedule.dataset_spent()
                    return
                version = self._loaded[engine]
                group = _Group(key, version, self.schedule.start(key, version), engine, self.world.samples)
                self._running[key] = group
                self.outcome.fullest = max(self.outcome.fullest, self._held())
                self._waiting.extend([group] * self.world.samples)
                self._decode()

    def _held(self) -> float:
        """Bytes in the table, in largest groups."""
        taken = (self._trained[key][0] for key in self.schedule.taken)
        return sum(group.size for group in (*self._running.values(), *self._ready.values(), *taken))

    def _decode(self) -> None:
        """Give the free slots to the samples that wait, first come first served."""
        while self._waiting and (self.world.slots is None or self._decoding < self.world.slots):
            group = self._waiting.popleft()
            if self._running.get(group.key) is not group:
                continue
            self._decoding += 1
            duration = self.random.lognormvariate(0.0, self.world.tail)
            begun = self._meters[group.engine].until(self.time)
            self._after(duration, lambda group=group, begun=begun, spent=duration: self._sampled(group, begun, spent))  # type: ignore[misc]

    def _sampled(self, group: _Group, begun: float, spent: float) -> None:
        """A sample of the group has ended, after `spent`; `begun`: what the engine's meter stood at when it began."""
        self._decoding -= 1
        group.decoding += spent
        group.versions += self._meters[group.engine].until(self.time) - begun
        group.left -= 1
        if not group.left:
            self._end(group)
        self._decode()

    def _end(self, group: _Group) -> None:
        if self._running.get(group.key) is not group:
            return
        chance = self.random.random()
        if chance < self.world.fail_share:
            self.outcome.failed += 1
            self._hand_back(group.key)
            return
        del self._running[group.key]
        if chance < self.world.fail_share + self.world.drop_share:
            self.outcome.filtered += 1
            self.schedule.drop(group.key)
            return
        group.size = self._sizes.random()
        self._ready[group.key] = group
        self.schedule.ready(group.key)

    def _hand_back(self, key: GroupKey) -> None:
        self.schedule.drop(key)
        self._running.pop(key, None)
        self._ready.pop(key, None)
        self._again.append(key._replace(attempt=key.attempt + 1))
        self.schedule.dataset_refilled()

    def _step(self) -> None:
        self._training = False
        self._idle_since = self.time
        self.outcome.batch_sizes.append(len(self.schedule.taken))
        for key in self.schedule.step():
            self.outcome.handed_back += 1
            self._hand_back(key)
        self._published = self.schedule.batch
        for engine in range(self.world.engines):
            self._load_later(engine)
        if self._published % self.world.commit_every == 0:
            self._commit = self._published
        if self.random.random() < self.world.engine_death_share:
            self._kill(self.random.randrange(self.world.engines))
        if self.random.random() < self.world.restore_share and not self.schedule.is_finished:
            self._restore()

    def _load_later(self, engine: int) -> None:
        version = self._published
        delay = self.random.random() * self.world.load_time

        def load() -> None:
            self._load(engine, max(self._loaded[engine], version))

        self._after(delay, load)

    def _load(self, engine: int, version: int) -> None:
        self._loaded[engine] = version
        self._meters[engine].change(self.time, version)

    def _kill(self, engine: int) -> None:
        for group in [group for group in self._running.values() if group.engine == engine]:
            self.outcome.failed += 1
            self._hand_back(group.key)
        self._load(engine, self._published)

    def _restore(self) -> None:
        """Crash now: what the ledger holds survives, and versions after the commit are gone."""
        self._generation += 1
        self._events.clear()
        back = [group for group, batch in self._trained.values() if batch >= self._commit]
        for group in back:
            del self._trained[group.key]
        live = back + list(self._ready.values())
        self._again.extendleft(self._running)
        self._running.clear()
        self._waiting.clear()
        self._decoding = 0
        self.schedule = self._new_schedule()
        self.schedule.restore(self._commit, [(group.key, group.deadline) for group in live])
        self._ready = {group.key: group for group in live}
        for group in live:
            self.schedule.ready(group.key)
        self._published = self._commit
        for engine in range(self.world.engines):
            self._load(engine, self._commit)
        self._training = False
        self._idle_since = self.time
        del self.outcome.batch_sizes[self._commit :]
