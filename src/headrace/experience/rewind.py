"""Back to a commit, as a run starts again or while its groups run: schedule, ledger, table and what is played go there
together. `Flow` is who asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.experience.columns import FinishedGroup, put_samples
from headrace.experience.drops import HANDED_BACK
from headrace.experience.finished_groups import FinishedGroups
from headrace.experience.header import header_of
from headrace.experience.issued_groups import IssuedGroups
from headrace.experience.prompts.dataset import PromptSource
from headrace.experience.prompts.pass_rates import PassRates
from headrace.experience.records.codec import decode_group
from headrace.experience.records.recorded import RecordedSource
from headrace.experience.sample import GroupKey
from headrace.experience.schedule import Schedule
from headrace.experience.table import ExperienceTable
from headrace.store import AttemptRow, Commit, Restored, RunStore


class Rewind:
    def __init__(
        self,
        schedule: Schedule,
        table: ExperienceTable,
        source: PromptSource | RecordedSource,
        store: RunStore,
        issued: IssuedGroups,
        finished: FinishedGroups,
        pass_rates: PassRates | None,
    ) -> None:
        """All of them are the flow's."""
        self._schedule = schedule
        self._table = table
        self._source = source
        self._store = store
        self._issued = issued
        self._finished = finished
        self._pass_rates = pass_rates

    def restore(self, batch: int, ready: Iterable[AttemptRow]) -> None:
        """In a run that begins: finished groups come from the journal, in the order in which they once finished."""
        finished = []
        for row in ready:
            if row.offset is None:
                raise ValueError(f"group {row.key} is ready but has no place in the journal")
            finished.append((row.offset, row))
        finished.sort(key=lambda pair: pair[0])
        self._schedule.restore(batch, [(GroupKey(*row.key), row.deadline) for _, row in finished])
        for offset, row in finished:
            group = decode_group(self._store.journal.read(offset))
            header = header_of(group)
            rate = self._pass_rates.of(header) if self._pass_rates is not None and row.pass_rate is None else None
            if rate is not None:
                # Where nothing runs ahead it is of the batch that was composed when the crash came.
                self._store.ledger.score(row.key, pass_rate=rate, composing=row.start_version)
            self._table.reserve(group.key, beyond_capacity=True)
            self._finished.put(FinishedGroup(header, put_samples(self._table.refs, group)), offset)

    def play_again(self, running: Iterable[AttemptRow]) -> None:
        """After `restore`: unfinished groups are issued again, first those of which tokens were kept; prompts that were
        handed back come again."""
        running, store = list(running), self._store
        store.partials.keep({row.key for row in running})
        begun = {GroupKey(*row.key): row.start_version for row in running if store.partials.has(row.key)}
        self._issued.again_from_tokens(begun)
        self._issued.again(key for row in running if (key := GroupKey(*row.key)) not in begun)
        for row in store.ledger.attempts("dropped"):
            key = GroupKey(*row.key)
            handed_back = (row.reason or "").startswith(HANDED_BACK)
            if handed_back and store.ledger.latest_attempt(key.epoch, key.position) == key.attempt:
                self._source.returned(key)

    def go_back(self, commit: Commit, trained: Mapping[GroupKey, FinishedGroup]) -> Restored:
        """See `Flow.go_back`."""
        ledger, schedule = self._store.ledger, self._schedule
        since = {GroupKey(*row.key): row for row in ledger.trained_since(commit.number)}
        lost = [key for key in since if key not in trained]
        with self._store.checkpoints.fork(commit) as restored:
            for key in lost:
                ledger.lose(key)
            again = [key for key in since if key in trained]
            taken = schedule.taken
            went = schedule.go_back(commit.number, [(key, since[key].deadline) for key in again], ended=self._finished)
            for key, deadline in went.due_earlier.items():
                ledger.due(key, deadline=deadline)
            for key in went.ended:
                ledger.withdraw(key)
        self._table.end_leases()
        for key in went.ended:
            self._table.remove(key)
        self._issued.leave(went.ended)
        self._finished.reopen()
        for key in again:
            offset = since[key].offset
            assert offset is not None
            self._table.remove(key)  # a stage that nobody waits for may not have been done with it
            self._table.reserve(key, beyond_capacity=True)
            self._finished.put(trained[key], offset, is_kept=True)
        for key in (*again, *taken):
            schedule.ready(key)
        self._issued.again(lost)
        if lost or went.ended:
            schedule.dataset_refilled()
        return restored
