"""The flow of groups: the one place where schedule, ledger, journal and table change together; how they go back to a
commit is in `rewind.py`.

Roles call it with what happened; it keeps the order of writes of the design's section 5: the journal has a group before
it comes here, then ledger, then table. Whoever waits for a change waits on `changed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from headrace.experience.columns import FinishedGroup, rewarded
from headrace.experience.drops import EXHAUSTED, HANDED_BACK, OVERDUE, SURPLUS, Drops
from headrace.experience.finished_groups import FinishedGroups
from headrace.experience.header import GroupHeader
from headrace.experience.issued_groups import IssuedGroups
from headrace.experience.prompts.dataset import Prompt, PromptSource
from headrace.experience.prompts.pass_rates import PassRates
from headrace.experience.records.codec import CodecError, decode_group
from headrace.experience.records.recorded import RecordedSource
from headrace.experience.rewind import Rewind
from headrace.experience.sample import Group, GroupKey
from headrace.experience.schedule import Bound, Placement, Schedule
from headrace.experience.table import ExperienceTable
from headrace.runtime.signal import Signal
from headrace.store import AttemptRow, Commit, JournalOffset, Receipt, Restored, RunStore, StoreError


@dataclass(frozen=True, slots=True)
class Admission:
    """A group that may start now."""

    key: GroupKey
    prompt: Prompt
    start_version: int
    deadline: int
    issue: int = 0
    """How often the attempt was given out before."""


@dataclass(frozen=True, slots=True)
class TrainedBatch:
    """What the trained batch was made of."""

    batch: int
    groups: int
    late_groups: int
    dropped: dict[str, int]
    """Groups that were dropped while it was composed, by reason."""


class Flow:
    def __init__(
        self,
        schedule: Schedule,
        table: ExperienceTable,
        source: PromptSource | RecordedSource,
        store: RunStore,
        *,
        max_drops_per_batch: int | None = None,
        reward_column: str = "reward",
        column_bytes: int = 0,
        quote: Callable[[Group], str] | None = None,
        pass_rates: PassRates | None = None,
    ) -> None:
        """`max_drops_per_batch`: after so many drops while one batch is composed, the gate raises NothingToTrain.
        `reward_column`: what the table calls the reward that a sample came with. `column_bytes`: of a token, in the
        columns that stages will write. `quote`: a sample of a group in words, for messages.
        `pass_rates`: of a curriculum by them."""
        self._pass_rates = pass_rates
        self._learnt = 0
        """The curriculum has the pass rates of all batches before this one."""
        self._quote = quote
        self._schedule = schedule
        self._table = table
        self._source = source
        self._store = store
        self._refs = table.refs
        self._issued = IssuedGroups()
        self._overdue: dict[GroupKey, None] = {}
        self._finished = FinishedGroups(table, reward_column=reward_column, column_bytes=column_bytes)
        """Those that are ready or in the batch."""
        self._rewind = Rewind(schedule, table, source, store, self._issued, self._finished, pass_rates)
        self._batch_rows = 0
        self._first_open = -1
        """The first batch that a live group may still enter, when it was last asked who is overdue."""
        self._told: tuple[int, bool, bool] | None = None
        """Batch, sealed and finished, when the table's consumers were last told."""
        self._placements: list[Placement] = []
        self._drops = Drops(max_drops_per_batch, self._quoted)
        self.changed = Signal()

    @property
    def batch(self) -> int:
        """The batch being composed."""
        return self._schedule.batch

    @property
    def is_sealed(self) -> bool:
        return self._schedule.is_sealed

    @property
    def missing_groups(self) -> int:
        """That have still to enter the batch, before it is full."""
        return self._schedule.free_places

    @property
    def is_finished(self) -> bool:
        return self._schedule.is_finished

    @property
    def running_groups(self) -> int:
        return self._schedule.running_groups

    @property
    def ready_groups(self) -> int:
        return self._schedule.ready_groups

    @property
    def drop_words(self) -> dict[str, str]:
        """What went wrong, by reason of the drop; the last time that it did."""
        return self._drops.words

    def check(self) -> None:
        """Raises LawBroken, or ScheduleError where groups are due that have no place. Holds at every moment."""
        self._store.ledger.counts().check()
        if self._schedule.on_deadline == "wait":
            self._schedule.check()

    def rows_of_batch(self) -> int:
        """Rows of the groups that have entered the batch so far."""
        return self._batch_rows

    def describe(self) -> str:
        """Where the groups are, for messages."""
        schedule = self._schedule
        dropped = ", ".join(f"{reason} {count}" for reason, count in sorted(self._drops.by_reason().items()))
        return (
            f"{len(schedule.taken)} of {schedule.prompts_per_batch} groups taken, {schedule.running_groups} running, "
            f"{schedule.ready_groups} ready; dropped since the last step: {dropped or 'none'}"
        )

    def admit(self, version: int) -> Admission | None:
        """Start the next group on an engine that has loaded version number `version`, if the gate is open.

        Raises NothingToTrain.
        """
        schedule = self._schedule
        self._drops.check(schedule.batch, len(schedule.taken), schedule.prompts_per_batch)
        if self.shut_by(version) is not None:
            return None
        beyond = False
        if self._issued.waits:
            oldest = self._goes_on(version)
            key = self._issued.take_next()
            prompt = self._source.prompt(key.epoch, key.position)
            if oldest is None:
                oldest, deadline = version, self._schedule.start(key, version)
            else:
                deadline, beyond = self._schedule.go_on(key, oldest), True
            issue = self._store.ledger.reissue(key, start_version=oldest, deadline=deadline)
        elif self._issued.left:
            return None  # they come before any new prompt, and before the dataset is spent
        else:
            issued = self._source.next()
            if issued is None:
                self._schedule.dataset_spent()
                self._advance()
                return None
            (key, prompt, row), issue = issued, 0
            deadline = self._schedule.start(key, version)
            self._store.ledger.issue(key, prompt_id=prompt.prompt_id, start_version=version, deadline=deadline, row=row)
        self._table.reserve(key, beyond_capacity=beyond)
        self._issued.play(key, issue)
        return Admission(key, prompt, version, deadline, issue)

    def shut_by(self, version: int) -> Bound | None:
        """What keeps a group from starting on an engine that has loaded version number `version`; None if it may."""
        if self._goes_on(version) is not None:
            return None
        bound = self._schedule.shut_by(version, has_bytes=self._table.has_bytes)
        return "bytes" if bound is None and not self._table.has_place else bound

    def _goes_on(self, version: int) -> int | None:
        """Of the group that is issued again next, the number of the version by which its deadline is that of its oldest
        token, if it goes on from tokens that were kept."""
        begun = self._issued.begun_on
        if begun is None:
            return None
        oldest = min(begun, version)
        return oldest if self._schedule.may_go_on(oldest) else None

    def finish(self, group: FinishedGroup, receipt: Receipt) -> None:
        """The group's episodes have ended, and it is in the journal: mark it ready, put its trainable samples into the
        table, which has its refs from now on.

        A group that was handed back or given out again meanwhile is let go.
        """
        key = group.header.key
        if key in self._overdue or self._issued.issue_of(key) != receipt.issue:
            for ref in group.refs:
                self._refs.free(ref)
            return
        rate = None if self._pass_rates is None else self._pass_rates.of(group.header)
        self._store.ledger.ready(receipt, pass_rate=rate, composing=self._schedule.batch)
        self._issued.end(key)
        self._store.partials.remove(key)
        self._finished.put(group, receipt.place)
        self.changed.notify()

    def hand_back(self, key: GroupKey, reason: str, failure: str | None = None) -> None:
        """The attempt came to nothing: try its prompt again, unless its attempts are exhausted. `failure`: of a sample,
        in words."""
        self._hand_back(key, reason, failure)
        self._advance()

    def may_keep_place(self, key: GroupKey, version: int) -> bool:
        """Whether the running group keeps its place, if it is issued again on an engine that has loaded version number
        `version`. See `Schedule.reissue`."""
        return self._schedule.may_keep_place(key, version)

    def issue_again(self, key: GroupKey, version: int | None = None) -> Admission | None:
        """The work of the running group is lost, or no engine came that may serve it: its attempt begins again, from
        no tokens, with the next issue number. It counts neither as an attempt nor as a drop.

        `version`: number of what the engine has loaded that was chosen for it now; None: there is none. With one that
        is new enough it keeps its place, and is to be played at once; else (None) it starts through the gate, before
        any new prompt.
        """
        deadline = self._schedule.reissue(key, version)
        if version is None or deadline is None:
            # Its place is gone: what the lost worker may still bring would come back, at the next start, into a
            # schedule that has no room for it.
            self._store.ledger.withdraw(key)
            self._table.remove(key)
            self._issued.end(key)
            self._overdue.pop(key, None)
            self._issued.again([key])
            self._schedule.dataset_refilled()
            self._advance()
            return None
        issue = self._store.ledger.reissue(key, start_version=version, deadline=deadline)
        self._issued.play(key, issue)
        self._advance()
        return Admission(key, self._source.prompt(key.epoch, key.position), version, deadline, issue)

    def runs(self, key: GroupKey) -> bool:
        """Whether the group is to be played, as it was issued last."""
        return self._issued.issue_of(key) is not None

    def left(self) -> list[GroupKey]:
        """Groups that are played still, and must end now: the run went back, and has no place for them any more."""
        return self._issued.left

    def has_ended(self, key: GroupKey) -> None:
        """Nobody plays the group that was `left`: it starts again through the gate, before any new prompt."""
        if self._issued.has_ended(key):
            self._schedule.dataset_refilled()
            self._advance()

    def drop(self, key: GroupKey, reason: str, fault: str | None = None, judged: GroupHeader | None = None) -> None:
        """The finished group is not worth training on; or a `fault`, in words, keeps it from being judged. `judged`: as
        it was, to quote from it, if there are many such."""
        self._drops.judged(reason, fault, None if judged is None else (judged, self._finished.place(key)))
        self._remove(key, reason, fault)
        self._advance()

    def keep(self, key: GroupKey) -> None:
        """The finished group may be trained on: it is a candidate for the batch."""
        self._drops.kept()
        self._finished.keep(key)
        self._schedule.ready(key)
        self._advance()

    def overdue(self) -> list[GroupKey]:
        """Running groups that missed their last batch and must end now (`on_deadline: drop`)."""
        return list(self._overdue)

    @property
    def reason_overdue(self) -> str:
        """Why a group that is overdue goes."""
        return SURPLUS if self._schedule.surplus else OVERDUE

    def step(self) -> TrainedBatch:
        """The batch was trained: its groups are done, and the next batch is composed."""
        keys = self._schedule.taken
        late = sum(placement.is_late for placement in self._placements)
        done = TrainedBatch(self._schedule.batch, len(keys), late, self._drops.by_reason())
        self._store.ledger.train(keys, batch=self._schedule.batch)
        for key in keys:
            self._finished.forget(key)
        self._batch_rows = 0
        self._placements.clear()
        self._drops.clear()
        # All that are overdue go before anything enters the new batch: none of them may be taken.
        overdue = self._schedule.step()
        self._learn()
        self._shed(overdue)
        self._advance()
        return done

    def restore(self, batch: int, ready: Iterable[AttemptRow], running: Iterable[AttemptRow]) -> None:
        """Continue from a commit: finished groups come from the journal, in the order in which they once finished;
        unfinished ones are issued again, first those of which tokens were kept."""
        self._rewind.restore(batch, ready)
        self.changed.notify()
        self._learn()
        self._rewind.play_again(running)

    def go_back(self, commit: Commit, trained: Mapping[GroupKey, FinishedGroup]) -> Restored:
        """Compose the commit's batch again, while groups run. Nobody who leases rows may be at work; leases are ended.

        `trained`: of the groups of the batches since, what is journaled, behind refs that are the table's from now on;
        those that are not among them cannot be read any more, and are issued again. They and those of the batch at hand
        are candidates once more, and are not judged again. All else that was computed of rows is forgotten: values,
        proximal log-probs and advantages are of weights that were taken back, and other columns are worked out again
        as after a resume, from what does not change. Groups that run keep their place, get an earlier deadline, or are
        `left`, as the schedule says. Schedule, ledger and table go back together: where this raises, the run must end,
        and can be resumed.
        """
        restored = self._rewind.go_back(commit, trained)
        self._begin_again()
        return restored

    def train_again(self, keepers: Iterable[str]) -> None:
        """What was computed with rows of the batch was lost, and its weights are as they were. Nobody who leases rows
        may be at work: leases are ended, and columns that these workers kept, who have ended, are computed again."""
        self._table.end_leases()
        for keeper in keepers:
            self._table.lose(keeper)

    def fill_again(self) -> None:
        """All columns that were computed are lost. Nobody who leases rows may be at work."""
        self._table.lose_all()

    def _begin_again(self) -> None:
        """Nothing is known of the batch that is composed."""
        self._batch_rows = 0
        self._placements.clear()
        self._drops.clear()
        self._overdue.clear()
        self._first_open, self._told = -1, None
        # A curriculum keeps what it knows of batches that were taken back: their groups come again as they are.
        self._learnt = self._schedule.batch
        self._advance()

    def _learn(self) -> None:
        """The curriculum goes by what was known when the batch at hand began: so it does not depend on who ends first
        while a batch is composed, and a resumed run chooses as one that was not interrupted."""
        if self._pass_rates is not None:
            self._pass_rates.learn(self._store.ledger.pass_rates(self._learnt, self._schedule.batch))
            self._learnt = self._schedule.batch

    def _quoted(self, judged: GroupHeader, place: JournalOffset) -> str:
        """See `Drops`."""
        if self._quote is None:
            return ""
        try:
            group = decode_group(self._store.journal.read(place))
        except (StoreError, CodecError):
            return ""
        return self._quote(rewarded(group, judged))

    def _shed(self, overdue: Iterable[GroupKey]) -> None:
        """Hand back what is finished of these; whoever runs the others ends them first."""
        for key in overdue:
            if key in self._finished:
                self._hand_back(key, self.reason_overdue)
            else:
                self._overdue[key] = None

    def _hand_back(self, key: GroupKey, reason: str, words: str | None = None) -> None:
        self._overdue.pop(key, None)
        again = self._source.returned(key)
        self._remove(key, f"{HANDED_BACK}{reason}" if again else f"{EXHAUSTED} ({reason})", words)
        if again:
            self._schedule.dataset_refilled()

    def _remove(self, key: GroupKey, reason: str, words: str | None) -> None:
        self._schedule.drop(key)
        self._store.ledger.drop(key, reason)
        self._store.partials.remove(key)
        self._table.remove(key)
        self._issued.end(key)
        self._finished.forget(key)
        self._drops.add(reason, words)

    def _advance(self) -> None:
        """Let the schedule decide membership, and wake whoever depends on it."""
        for placement in self._schedule.take():
            self._placements.append(placement)
            self._batch_rows += self._finished.rows(placement.key)
            self._table.write_group(placement.key, "batch", placement.batch)
        schedule = self._schedule
        if schedule.first_open != self._first_open:
            # Nobody can have become overdue since: who starts may enter a batch.
            self._first_open = schedule.first_open
            self._shed(schedule.overdue())
        now = (schedule.batch, schedule.is_sealed, schedule.is_finished)
        if now != self._told and any(now[1:]):
            self._table.wake_all()
        self._told = now
        self.changed.notify()
