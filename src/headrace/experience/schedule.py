"""The schedule: which group may start, by which batch it is due, and which batch it enters.

Words. B groups make a batch. k is the batch being composed and p its free places. A group is *live* while it runs
or is ready and has not entered a batch. v is the number of the version that was loaded where the group started;
its deadline is D = v + max_staleness: the last batch that may train every one of its tokens. N(d) is the number of
live groups with deadline <= d.

**Start.** With i = k*B + (places taken in k) + live, a group may start on version v iff
i < min(v + max_staleness + 1, total_batches) * B and live < ahead.

**Take** (`wait`). A ready group with deadline D may enter batch k iff N(d) <= (d - k)*B + p - 1 for every d in
k ... D - 1. Candidates are tried by earliest deadline, then by arrival.

**Invariant** (`wait`). N(d) <= (d - k)*B + p for all d >= k. *Proof.* A start raises N(d) only for d >= D. Just
before it, k*B + (B - p) + live < (D + 1)*B, so after it live <= (D + 1)*B - k*B - (B - p) = (D - k)*B + p, and
N(d) <= live <= (D - k)*B + p <= (d - k)*B + p. A take lowers p by one; for d >= D it lowers N(d) by one as well, and
for d < D its rule asks for N(d) <= (d - k)*B + p - 1. A step happens when p = 0: then N(d) <= (d - k)*B =
(d - (k + 1))*B + B is the invariant of k + 1 with p = B; d = k gives N(k) = 0: nothing is overdue. A drop or a failure
lowers N. Hence N(k) <= p at all times: every group that is due has a place, and no token of a group trained in a
batch <= D is staler than D - v = max_staleness, because its oldest token has version v.

**Several engines** need no other proof: v is of the engine that the group begins on, each start is asked for and made
with its own v, and the step of the proof for a start speaks of that D alone. What an engine of another version holds
plays no part. Only two things must be kept by whoever chooses the engine (`engines/admission.py`): that no request of
the group is served by a version of a lesser number, or of a branch that was left, so that its oldest token has version
v; and that the gate is asked before the load decides, so that an engine that cannot take new weights, and is idle for
that, does not hold back a start that another may make. Where the episodes of a group go to several engines, v is the
least number among those for which the gate is open, and D is that v + max_staleness.

**No deadlock** (`wait`). Let p > 0 and nothing run. If something is ready, take the one of earliest deadline D: for
d < D, N(d) = 0 <= (d - k)*B + p - 1, so it may enter. If nothing is live, i = k*B + (B - p) < (k + 1)*B, so a group may
start as soon as some engine has loaded version k - max_staleness or newer, which was published before batch k
began. **No waste**: `wait` drops nothing of its own accord.

Plain earliest-deadline-first (take any ready group, earliest deadline first) breaks the bound. With B = 1 and
max_staleness = 2 let three groups start at version 0 (due at 2) and, once batch 0 is trained, one at version 1 (due
at 3). If the last one ends first and takes batch 1, two groups are due at batch 2, which has one place.

**Bytes** (of the table). While it has none for one group more, a group starts only if live < p as well: fewer are live
than batch k has free places for. So bytes hold back what runs ahead of batch k, and nothing that batch k needs. They
only take starts away, so the invariant stands. *No deadlock:* the argument above asks for a start only where nothing is
live, and there live = 0 < p. A drop lowers live, so what is dropped is replaced. *What the table holds:* with E the
bytes of the largest group, reserved at the start and replaced at `put` by what the group takes, at most
max(bound, B * E). Only a start adds to it. One for which there are bytes leaves at most the bound; any other leaves at
most (places taken in k) + live <= (B - p) + p = B groups. (A restore brings back all groups since the commit: until
enough of them have left, only what the batch at hand needs starts.) *On-policy*, where
max_staleness = 0 and surplus = 0, the start rule itself says i < (k + 1)*B, which is live < p: bytes decide nothing.

**Surplus** (over-sampling, with `drop`). So many groups more may start than the batches up to the deadline hold:
i < min((v + max_staleness + 1) * B + surplus, total_batches * B), unless the batch D is sealed: none is started for it
any more. The first that are ready fill the batches; who then can enter no batch within its deadline is handed back as
soon as its last batch is sealed. What is ready or running with a later deadline stays for the next batch.

**Issued again.** The work of a running group is lost, or no engine could serve it in time: it begins again from no
tokens. Let v' be the version of the engine chosen now. If v' >= v, the group keeps its place, and its deadline becomes
v' + max_staleness without the gate being asked: raising a deadline from D to D' lowers N(d) for D <= d < D' and leaves
all else, so the invariant stands; and the oldest token that it will have is of v'. (Tokens of the earlier issue may be
as old as v: under D' they could be trained max_staleness + v' - v too late. Hence none of them is kept.) If only older
engines serve, D' < D would raise N: the group is dropped, and starts again through the gate, before any new prompt.
*No deadlock*: the first leaves the set of live groups as it is, the second is a drop. v is D - max_staleness in all of
this: so it is after a start, and after each of the two rules here and below.

**Gone on with after a restart.** A group that ran has tokens that were kept, none of a version older than v, the one
that it had started on. It goes on from them, on an engine of version v', without the gate being asked, and is due when
its oldest token is: D = min(v, v') + max_staleness. For that batch D must be open still, and the invariant must hold
with the group for all d >= k, which is all that a start has to keep. *All of them fit* where k is the commit's batch,
nothing new has started, and v <= v' of each: they were live beside all that is ready now, with the same deadlines, so
what is said next, of a return to the commit, holds of them. (Where v > v', D is what a start would give.) One that does
not fit starts through the gate as any other; tokens that its deadline would let grow too old are not trained.

**Going back** to commit c <= k while groups run, on a new branch whose first version is c. The groups that were trained
in batches >= c, and those in batch k, are live again with their deadlines; those that are ready stay so. Running groups
with v <= c keep place and deadline, and so does one that has ended and was not judged yet: it has all its tokens. A
running group with v > c may get tokens of version c from now on: due at v + max_staleness it could be trained v - c too
late, so its deadline becomes c + max_staleness, if the invariant holds with it, the earliest first; else it ends, and
is issued again through the gate. *Proof* of the invariant at c, where all places are free, for all but these last: a
group trained in batch j, or in batch k, had a deadline >= j, or >= k; and all that was live had one >= k, since the
step to k left N(k - 1) = 0. So for c <= d < k those due by d were trained in c ... d, at most (d - c + 1)*B = (d - c)*B
+ B. For d >= k they are at most N(d), those of batches c ... k - 1 and those in k: N(d) + (k - c)*B + (B - p) <= (d -
k)*B + p + (k - c)*B + (B - p) = (d - c)*B + B. The last are added one by one where it still holds. (Were v +
max_staleness kept: with max_staleness = 2 a group that began on (0, 7), due at 9, goes on after a return to (1, 5), and
batch 9 trains a token that is 4 stale.)

Under `mask`, `drop` and `late` the batch does not wait for a group that is due: ready groups are taken by earliest
deadline, and the bound holds because tokens older than it are left out of the loss (`mask`) or the group is handed
back (`drop`); under `late` it holds for admission only, and the overrun is counted by whoever trains.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.experience.due_counts import DueCounts
from headrace.experience.keyed_heap import KeyedHeap
from headrace.experience.sample import GroupKey

OnDeadline = Literal["wait", "mask", "drop", "late"]
Bound = Literal["prompts", "staleness", "ahead", "bytes"]
"""What may shut the gate: all prompts of the run are started, or a limit is reached."""


class ScheduleError(RuntimeError):
    """An event that cannot happen in this state: the caller lost track of a group."""


def reachable_staleness(prompts_per_batch: int, max_staleness: int, ahead: int) -> int:
    """The staleness that groups reach, and never pass, whose rollouts all take equally long: in batches, at most
    `max_staleness`.

    A group that starts while batch k is composed finds at most ahead - 1 others live and B places taken, all of them
    before it. So it enters batch k + (B + ahead - 1) // B = k + ceil(ahead / B) at the latest. Its version is k, or
    k - 1 as long as the engine has not taken k. (Of unequal rollouts, a long one is overtaken by others until its
    deadline: those reach `max_staleness`, whatever `ahead` is.)
    """
    return min(max_staleness, -(-ahead // prompts_per_batch) + 1)


@dataclass(slots=True)
class Live:
    key: GroupKey
    deadline: int
    arrival: int | None = None
    """Order in which the group became ready; None while it runs."""
    start: int = 0
    """Order in which the group became live."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A group that just entered a batch. Written once."""

    key: GroupKey
    batch: int
    deadline: int

    @property
    def is_late(self) -> bool:
        return self.batch > self.deadline


@dataclass(frozen=True, slots=True)
class WentBack:
    """What became of the groups that ran when the schedule went back to a commit."""

    due_earlier: dict[GroupKey, int]
    """They go on, with this deadline."""
    ended: tuple[GroupKey, ...]
    """Live no more: to be issued again, through the gate."""


@dataclass(slots=True)
class Schedule:
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
    """Each with its deadline."""
    _live: dict[GroupKey, Live] = field(default_factory=dict)
    _candidates: KeyedHeap[GroupKey] = field(default_factory=KeyedHeap)
    """Ready groups."""
    _due: DueCounts = field(init=False)
    """Of all live groups."""
    _last_batches: KeyedHeap[GroupKey] = field(default_factory=KeyedHeap)
    """Live groups by deadline, less those that are known to be overdue (`drop`)."""
    _overdue: dict[GroupKey, Live] = field(default_factory=dict)
    _starts: int = 0
    _arrivals: int = 0
    _ready: int = 0
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
        self._due = DueCounts(self.prompts_per_batch)

    @property
    def live(self) -> int:
        return len(self._live)

    @property
    def ready_groups(self) -> int:
        return self._ready

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
    def first_open(self) -> int:
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
        if place >= due or version + self.max_staleness < self.first_open:
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

    def may_go_on(self, version: int) -> bool:
        """Whether a group of which tokens were kept, the oldest of version number `version`, may be live again, due
        when these are."""
        deadline = version + self.max_staleness
        place = self.batch * self.prompts_per_batch + len(self._taken) + self.live
        if deadline < self.first_open or place >= self.total_batches * self.prompts_per_batch:
            return False
        if self.on_deadline != "wait":
            return True
        self._due.add(deadline)
        full = self._due.first_full(self.batch, self.free_places)
        self._due.remove(deadline)
        return full is None

    def go_on(self, key: GroupKey, version: int) -> int:
        """The group is live again; returns its deadline. Raises ScheduleError unless `may_go_on`."""
        if not self.may_go_on(version):
            raise ScheduleError(f"group {key} may not go on from tokens of version {version}: {self._state()}")
        self._add(Live(key, version + self.max_staleness))
        return version + self.max_staleness

    def ready(self, key: GroupKey) -> None:
        """The group has finished, and was kept."""
        group = self._of(key)
        if group.arrival is not None:
            raise ScheduleError(f"group {key} is ready already")
        group.arrival = self._arrivals
        self._arrivals += 1
        self._ready += 1
        self._candidates.set(key, self._rank(group))

    def drop(self, key: GroupKey) -> None:
        """The group failed, was filtered out or was handed back: its place is free again."""
        self._leave(self._of(key))

    def may_keep_place(self, key: GroupKey, version: int) -> bool:
        """Whether the running group, issued again on an engine that has loaded version number `version`, is due no
        earlier than it was."""
        return version + self.max_staleness >= self._of(key).deadline

    def reissue(self, key: GroupKey, version: int | None) -> int | None:
        """The running group begins again, from no tokens, on an engine that has loaded version number `version`; None:
        on none. Its deadline, if it keeps its place; None if it is live no more, and has to start through the gate."""
        group = self._of(key)
        if group.arrival is not None:
            raise ScheduleError(f"group {key} is ready: only one that runs is issued again")
        if version is None or not self.may_keep_place(key, version):
            self._leave(group)
            return None
        self._due_at(group, version + self.max_staleness)
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
            self._leave(group)
            self._taken[group.key] = group.deadline
            placements.append(Placement(group.key, self.batch, group.deadline))
        return placements

    def overdue(self) -> list[GroupKey]:
        """The groups that, under `drop`, can enter no batch any more and must be handed back; the caller drops them.

        Due at the batch being composed, they are overdue as soon as it is sealed.
        """
        if self.on_deadline != "drop":
            return []
        while (first := self._last_batches.first()) is not None and first.priority < self.first_open:
            self._last_batches.discard(first.key)
            self._overdue[first.key] = self._live[first.key]
        return [group.key for group in sorted(self._overdue.values(), key=lambda group: group.start)]

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

    def go_back(self, batch: int, trained: Iterable[tuple[GroupKey, int]], ended: Container[GroupKey] = ()) -> WentBack:
        """Compose `batch` again, from its commit: `trained` are the groups (key, deadline) of the batches since. They,
        and those that are in the batch now, become `ready` once more. `ended`: groups that get no tokens any more,
        though they are not `ready`. Raises ScheduleError if, under `wait`, `trained` are no groups of this
        schedule."""
        again = dict(trained) | self._taken
        if batch > self.batch:
            raise ScheduleError(f"batch {batch} is not behind batch {self.batch}: nobody can go back to it")
        self.batch = batch
        self._taken.clear()
        for key, deadline in again.items():
            self._add(Live(key, deadline))
        # What cannot be overdue any more is found again.
        for key, group in self._overdue.items():
            self._last_batches.set(key, group.deadline)
        self._overdue.clear()
        due = batch + self.max_staleness
        running = [
            one for one in self._live.values() if one.arrival is None and one.key not in again and one.key not in ended
        ]
        newer = [one for one in running if one.deadline > due]
        newer.sort(key=lambda group: (group.deadline, group.start))
        for group in newer:
            self._due.remove(group.deadline)
        try:
            if self.on_deadline == "wait":
                self.check()
        except ScheduleError:
            for group in newer:
                self._due.add(group.deadline)
            raise
        earlier: dict[GroupKey, int] = {}
        left = []
        for group in newer:
            self._due.add(due)
            self._due_is_counted(group, due)
            if self.on_deadline == "wait" and self._due.first_full(batch, self.free_places) is not None:
                left.append(group.key)
                self._leave(group)
            else:
                earlier[group.key] = due
        return WentBack(earlier, tuple(left))

    def check(self) -> None:
        """Raises ScheduleError if the invariant of `wait` does not hold."""
        full = self._due.first_full(self.batch, self.free_places)
        if full is not None:
            room = (full.deadline - self.batch) * self.prompts_per_batch + self.free_places
            raise ScheduleError(f"{full.groups} groups are due by batch {full.deadline}, which has room for {room}")

    def _next(self) -> Live | None:
        first = self._candidates.first()
        if first is None:
            return None
        group = self._live[first.key]
        if self.on_deadline != "wait":
            return group
        full = self._due.first_full(self.batch, self.free_places - 1)
        return None if full is not None and full.deadline < group.deadline else group

    def _rank(self, group: Live) -> tuple[Any, ...]:
        """Of a ready group among the candidates; the least comes first."""
        return group.deadline, group.arrival

    def _add(self, group: Live) -> None:
        if group.key in self._live or group.key in self._taken:
            raise ScheduleError(f"group {group.key} is live already")
        group.start = self._starts
        self._starts += 1
        self._live[group.key] = group
        self._due.add(group.deadline)
        if self.on_deadline == "drop":
            self._last_batches.set(group.key, group.deadline)

    def _due_at(self, group: Live, deadline: int) -> None:
        self._due.remove(group.deadline)
        self._due.add(deadline)
        self._due_is_counted(group, deadline)

    def _due_is_counted(self, group: Live, deadline: int) -> None:
        """Its deadline, which is among those of all live groups already."""
        group.deadline = deadline
        if self.on_deadline == "drop":
            self._overdue.pop(group.key, None)
            self._last_batches.set(group.key, deadline)

    def _leave(self, group: Live) -> None:
        """It is live no more."""
        del self._live[group.key]
        self._due.remove(group.deadline)
        self._candidates.discard(group.key)
        self._last_batches.discard(group.key)
        self._overdue.pop(group.key, None)
        self._ready -= group.arrival is not None

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
