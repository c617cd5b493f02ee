"""The flow: ledger, journal, table and schedule move together, and a crash loses nothing."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from headrace.algorithms.kept_sets import KeptSets
from headrace.experience.drops import NothingToTrain
from headrace.experience.flow import Admission, Flow
from headrace.experience.leases import Consumer
from headrace.experience.loader import StreamingLoader
from headrace.experience.prompts.dataset import Prompt, PromptDataset, PromptOrder, PromptSource
from headrace.experience.records.group_journal import GroupJournal
from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus
from headrace.experience.schedule import Schedule
from headrace.experience.table import ExperienceTable
from headrace.runtime.inline import InlineRuntime
from headrace.store import IllegalTransition, RunStore

CONSUMERS = [
    Consumer("filter", frozenset({"reward"}), "group"),
    Consumer("actor", frozenset({"tokens", "keep", "batch"})),
]


def group(admission: Admission, tokens: int = 3, status: SampleStatus = SampleStatus.COMPLETED) -> Group:
    sample = Sample(
        group=admission.key,
        episode=0,
        index=0,
        tokens=np.arange(tokens, dtype=np.int32),
        loss_mask=np.array([False] + [True] * (tokens - 1)),
        logprobs=np.zeros(tokens, np.float32),
        versions=np.zeros(tokens, np.int32),
        branches=np.zeros(tokens, np.int32),
        status=status,
        reward=1.0,
    )
    return Group(
        admission.key,
        admission.prompt.prompt_id,
        admission.start_version,
        admission.deadline,
        (sample,),
        admission.issue,
    )


class Bench:
    """A flow over a real store, in the state that the store is in."""

    def __init__(
        self,
        folder: Path,
        store: RunStore,
        on_deadline: str = "wait",
        prompts: int = 8,
        batches: int = 10,
        surplus: int = 0,
        max_staleness: int = 1,
        max_drops: int | None = None,
        table_bytes: float = math.inf,
        group_bytes: int = 0,
        column_bytes: int = 0,
        ahead: int = 4,
    ) -> None:
        self.prompts, self.batches = prompts, batches
        self.folder = folder
        self.store = store
        self.runtime = InlineRuntime()
        dataset = PromptDataset([Prompt(str(place), f"prompt {place}", {}) for place in range(prompts)])
        last = store.ledger.frontier()
        source = PromptSource(
            dataset,
            PromptOrder(prompts, seed=0, shuffle=True),
            epochs=1,
            max_attempts=2,
            frontier=None if last is None else (last[0], last[1] + 1),
        )
        self.table = ExperienceTable(
            CONSUMERS,
            capacity=20,
            capacity_bytes=table_bytes,
            group_bytes=group_bytes,
            lease_s=60.0,
            clock=self.runtime.clock,
        )
        schedule = Schedule(
            prompts_per_batch=2,
            max_staleness=max_staleness,
            total_batches=batches,
            on_deadline=on_deadline,  # type: ignore[arg-type]
            ahead=ahead,
            surplus=surplus,
        )
        self.flow = Flow(
            schedule,
            self.table,
            source,
            store,
            max_drops_per_batch=max_drops,
            column_bytes=column_bytes,
        )

        self.journal = GroupJournal(store.writer, self.runtime, self.table.refs)

    def admit(self, version: int = 0) -> Admission:
        admission = self.flow.admit(version)
        assert admission is not None
        return admission

    async def finish(self, group: Group) -> None:
        """As a worker does: journal it, and hand it over with the receipt."""
        self.flow.finish(*await self.journal.write(group))

    async def finish_and_keep(self, admission: Admission) -> None:
        await self.finish(group(admission))
        self.flow.keep(admission.key)

    def train(self) -> None:
        """What the actor does with a sealed batch, less the training."""
        for consumer in ("filter", "actor"):
            while (lease := self.table.try_lease(consumer, list)) is not None:
                self.table.ack(lease)
        self.flow.step()


def with_bench(folder: Path, body: Callable[[Bench], Awaitable[None]], **settings: object) -> None:
    async def main() -> None:
        store = RunStore.create(folder / "run", config_yaml="", config_sha256="x", now=0.0)
        bench = Bench(folder / "run", store, **settings)  # type: ignore[arg-type]
        await body(bench)
        await bench.runtime.close()
        bench.store.ledger.counts().check()
        bench.store.close()

    asyncio.run(main())


def reopen(bench: Bench, **settings: object) -> tuple[Bench, int]:
    """As after a crash: nothing but the folder is left."""
    bench.store.close()
    store = RunStore.open(bench.folder, config_sha256="x")
    restored = store.checkpoints.restore()
    again = Bench(bench.folder, store, prompts=bench.prompts, batches=bench.batches, **settings)  # type: ignore[arg-type]
    again.flow.restore(restored.number, restored.ready, restored.running)
    bench.store = store
    return again, restored.number


def test_what_comes_of_an_earlier_issue_is_let_go(tmp_path: Path) -> None:
    """The attempt was given out again: its group is the one that comes with the number of the last issue."""

    async def body(bench: Bench) -> None:
        key = bench.admit().key
        again, _ = reopen(bench)
        admission = again.admit()
        assert (admission.key, admission.issue) == (key, 1)
        await again.finish(replace(group(admission), issue=0))
        assert (again.table.groups, again.flow.running_groups) == (0, 1)
        for _ in range(2):  # the second time is once too often, and costs nothing
            await again.finish(group(admission))
            assert again.table.groups == 1
        await again.runtime.close()

    with_bench(tmp_path, body)


def test_a_group_goes_from_gate_to_batch(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        first, second = bench.admit(), bench.admit()
        assert first.deadline == 1
        await bench.finish_and_keep(second)
        await bench.finish_and_keep(first)
        assert bench.flow.is_sealed
        assert bench.flow.rows_of_batch() == 2
        counts = bench.store.ledger.counts()
        assert (counts.issued, counts.running, counts.ready, counts.trained) == (2, 0, 2, 0)
        bench.train()
        assert bench.store.ledger.counts().trained == 2
        assert bench.table.groups == 0

    with_bench(tmp_path, body)


def test_whether_a_sample_was_cut_off_is_told_by_its_status_and_not_by_its_length(tmp_path: Path) -> None:
    """Also after a crash."""

    def cut_off(bench: Bench) -> dict[int, bool]:
        rows = bench.table.try_lease("filter", list)
        assert rows is not None
        return {row.header.length: row.columns["truncated"] for row in rows.rows}

    async def body(bench: Bench) -> None:
        await bench.finish(group(bench.admit(), tokens=9))
        await bench.finish(group(bench.admit(), tokens=4, status=SampleStatus.TRUNCATED))
        assert cut_off(bench) == {9: False, 4: True}
        again, _ = reopen(bench)
        assert cut_off(again) == {9: False, 4: True}
        await again.runtime.close()

    with_bench(tmp_path, body)


def test_the_table_counts_the_kept_sets_of_all_samples_also_of_those_that_failed(tmp_path: Path) -> None:
    """A sample of 3 tokens takes 51 bytes. Its sets take 4 bytes a token, and 2 an id: 5 of them. Where stages will
    write 8 bytes a token, these are counted for the row: the one sample that did not fail."""

    async def body(bench: Bench) -> None:
        plain = group(bench.admit())
        kept = KeptSets.of(np.array([1, 2, 3, 2, 4]), np.array([0, 3, 2]), 100)
        (sample,) = plain.samples
        failed = replace(sample, episode=1, status=SampleStatus.FAILED, failure="reward: none", kept=kept)
        await bench.finish(replace(plain, samples=(sample, failed)))
        assert bench.table.rows == 1
        assert bench.table.nbytes == 51 + 51 + 12 + 10 + 24

    with_bench(tmp_path, body, column_bytes=8)


def test_the_gate_closes_at_the_bound_and_a_drop_opens_it(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        admissions = [bench.admit() for _ in range(4)]
        assert bench.flow.admit(0) is None
        await bench.finish(group(admissions[0]))
        bench.flow.drop(admissions[0].key, "zero_spread")
        assert bench.table.groups == 0
        assert bench.store.ledger.counts().dropped == {"zero_spread": 1}
        assert bench.flow.admit(0) is not None

    with_bench(tmp_path, body)


def test_a_failed_group_is_tried_again_until_its_attempts_are_exhausted(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        first = bench.admit()
        bench.flow.hand_back(first.key, "failed: reward_timeout")
        again = bench.admit()
        assert again.key == first.key._replace(attempt=1)
        assert again.prompt == first.prompt
        bench.flow.hand_back(again.key, "failed: reward_timeout")
        assert bench.admit().key.position != first.key.position
        dropped = bench.store.ledger.counts().dropped
        assert dropped == {"again: failed: reward_timeout": 1, "exhausted (failed: reward_timeout)": 1}

    with_bench(tmp_path, body)


def test_a_group_that_no_engine_may_serve_is_issued_again_before_any_new_prompt(tmp_path: Path) -> None:
    """Also when the dataset had ended: same attempt, next issue, a new deadline, and no drop."""

    async def body(bench: Bench) -> None:
        flow = bench.flow
        first, second = bench.admit(), bench.admit()
        assert flow.admit(0) is None
        assert flow.admit(1) is None, "the dataset had ended"
        flow.issue_again(first.key)
        _, late = await bench.journal.write(group(first))
        with pytest.raises(IllegalTransition):  # also where only the ledger is left to know it, after a restart
            bench.store.ledger.ready(late)
        bench.store.ledger.counts().check()
        assert not flow.is_finished
        again = bench.admit(1)
        assert (again.key, again.deadline) == (first.key, 2)
        assert again.issue > first.issue
        await bench.finish(group(first))
        assert bench.table.groups == 0, "what comes of the earlier issue is let go"
        await bench.finish_and_keep(again)
        await bench.finish_and_keep(second)
        bench.train()
        assert flow.admit(1) is None
        assert flow.is_finished
        counts = bench.store.ledger.counts()
        assert (counts.issued, counts.trained) == (2, 2)

    with_bench(tmp_path, body, prompts=2)


def test_a_group_that_a_newer_engine_takes_over_keeps_its_place(tmp_path: Path) -> None:
    """Past a shut gate: next issue, a later deadline, the same reservation; what the lost worker gave is let go."""

    async def body(bench: Bench) -> None:
        flow = bench.flow
        for admission in [bench.admit(), bench.admit()]:
            await bench.finish_and_keep(admission)
        lost = bench.admit()
        bench.admit()
        bench.train()
        assert flow.shut_by(0) == "staleness"
        assert not flow.may_keep_place(lost.key, -1)
        again = flow.issue_again(lost.key, 1)
        assert again is not None
        assert (again.key, again.issue, again.start_version, again.deadline) == (lost.key, 1, 1, 2)
        assert again.prompt == lost.prompt
        bench.store.ledger.counts().check()
        assert flow.running_groups == 2
        await bench.finish(group(lost))
        assert bench.table.groups == 0
        await bench.finish_and_keep(again)
        assert flow.ready_groups + len(flow._schedule.taken) == 1

    with_bench(tmp_path, body)


def test_the_run_ends_short_when_the_dataset_is_spent(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        for _ in range(3):
            admission = bench.admit(version=9)
            if admission.key.position < 3:
                await bench.finish_and_keep(admission)
            if bench.flow.is_sealed:
                bench.train()
        assert bench.flow.admit(9) is None
        assert bench.flow.is_sealed
        assert not bench.flow.is_finished
        bench.train()
        assert bench.flow.is_finished

    with_bench(tmp_path, body, prompts=3)


def test_after_a_crash_finished_groups_come_back_and_running_ones_are_issued_again(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        trained = [bench.admit(), bench.admit()]
        finished, running = bench.admit(), bench.admit()
        for admission in (*trained, finished):
            await bench.finish_and_keep(admission)
        bench.train()

        again, number = reopen(bench)
        assert number == 0, "nothing was committed: the trained groups are ready again"
        assert again.table.groups == 3
        assert again.flow.running_groups == 3, "finished groups pass the filter again"
        for admission in (*trained, finished):
            again.flow.keep(admission.key)
        again.train()
        reissued = again.admit(version=1)
        assert reissued.key == running.key
        assert reissued.prompt == running.prompt
        assert again.store.ledger.counts().issued == 4, "the same attempt, not a new one"
        await again.runtime.close()

    with_bench(tmp_path, body)


@pytest.mark.parametrize("kept", [True, False])
def test_a_running_group_of_which_tokens_were_kept_goes_on_first_and_is_due_when_it_was(
    tmp_path: Path, kept: bool
) -> None:
    """B = 2, staleness at most 1, at most 4 live: all four started on version 0, due at batch 1."""

    async def body(bench: Bench) -> None:
        done = [bench.admit(), bench.admit()]
        first, last = bench.admit(), bench.admit()
        for admission in done:
            await bench.finish_and_keep(admission)
        bench.train()
        if kept:
            bench.store.partials.write(last.key, b"tokens")
        bench.store.partials.write((0, 7, 3), b"of a group that is gone")

        again, _ = reopen(bench)
        assert again.store.partials.keys() == ([last.key] if kept else [])
        reissued = [again.admit(version=1), again.admit(version=1)]
        assert [each.key for each in reissued] == ([last.key, first.key] if kept else [first.key, last.key])
        assert [each.deadline for each in reissued] == ([1, 2] if kept else [2, 2])
        assert [each.issue for each in reissued] == [1, 1]
        again.flow.check()
        for admission in done:
            again.flow.keep(admission.key)
        again.train()
        await again.finish_and_keep(reissued[0])
        assert again.store.partials.keys() == [], "the flow has what came of it"
        await again.runtime.close()

    with_bench(tmp_path, body)


def test_what_goes_on_needs_no_place_at_the_gate(tmp_path: Path) -> None:
    """After a crash all four of the last life are live beside it: the gate lets four be live at most."""

    async def body(bench: Bench) -> None:
        done = [bench.admit(), bench.admit()]
        for admission in done:
            await bench.finish_and_keep(admission)
        bench.train()
        finished, running = [bench.admit(version=1), bench.admit(version=1)], bench.admit(version=1)
        for admission in finished:
            await bench.finish_and_keep(admission)
        bench.store.partials.write(running.key, b"tokens")
        again, number = reopen(bench)
        assert number == 0
        assert (again.flow.running_groups, again.flow.ready_groups) == (4, 0), "finished, and judged once more"
        went_on = again.admit(version=0)
        assert (went_on.key, went_on.deadline) == (running.key, 1), "on version 0, the newest that there is"
        assert again.flow.shut_by(0) is not None
        again.flow.check()
        await again.runtime.close()

    with_bench(tmp_path, body)


def test_after_a_commit_what_it_trained_stays_trained(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        for _ in range(2):
            await bench.finish_and_keep(bench.admit())
        bench.train()
        prepared = bench.store.checkpoints.prepare(1, lambda path: (path / "x").write_text("weights"))
        bench.store.checkpoints.commit(prepared, branch=0, number=1, state={})
        again, number = reopen(bench)
        assert number == 1
        assert again.table.groups == 0
        assert again.store.ledger.counts().trained == 2
        await again.runtime.close()

    with_bench(tmp_path, body)


def test_a_prompt_that_was_handed_back_before_a_crash_is_not_lost(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        lost = bench.admit()
        bench.flow.hand_back(lost.key, "failed: engine")
        again, _ = reopen(bench)
        assert again.admit().key == lost.key._replace(attempt=1)
        await again.runtime.close()

    with_bench(tmp_path, body)


def test_overdue_running_groups_are_named_and_handed_back(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        slow = bench.admit()
        for version in (0, 0, 1, 1):
            await bench.finish_and_keep(bench.admit(version))
            if bench.flow.is_sealed:
                bench.train()
        assert bench.flow.overdue() == [slow.key]
        await bench.finish(group(slow))
        assert bench.table.groups == 0, "it ended too late to be put"
        bench.flow.hand_back(slow.key, "overdue")
        assert bench.flow.overdue() == []
        assert bench.store.ledger.counts().dropped == {"again: overdue": 1}

    with_bench(tmp_path, body, on_deadline="drop")


def test_a_finished_group_that_is_overdue_goes_before_the_next_batch_can_take_it(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        slow = [bench.admit(), bench.admit()]
        for version in (0, 0):
            await bench.finish_and_keep(bench.admit(version))
        bench.train()
        for admission in slow:
            await bench.finish(group(admission))
        for version in (1, 1):
            await bench.finish_and_keep(bench.admit(version))
        # Batch 1 is full, and was the last one that could have taken the two that no filter has judged yet.
        assert bench.store.ledger.counts().dropped == {"again: overdue": 2}
        assert bench.flow.overdue() == []
        bench.train()
        assert bench.flow.ready_groups == 0

    with_bench(tmp_path, body, on_deadline="drop")


OVERSAMPLED = {"on_deadline": "drop", "max_staleness": 0, "surplus": 2}


def test_a_surplus_is_handed_back_when_the_batch_is_sealed(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        admissions = [bench.admit() for _ in range(4)]
        assert bench.flow.admit(0) is None
        running, finished, *first = admissions
        await bench.finish(group(finished))
        for admission in first:
            await bench.finish_and_keep(admission)
        assert bench.flow.is_sealed
        assert bench.flow.overdue() == [running.key]
        assert bench.store.ledger.counts().dropped == {"again: surplus": 1}, "what is finished goes at once"
        bench.flow.hand_back(running.key, bench.flow.reason_overdue)
        assert bench.store.ledger.counts().dropped == {"again: surplus": 2}
        assert bench.flow.admit(0) is None, "nothing starts for a batch that is full"
        bench.train()
        again = [bench.admit(1).key for _ in range(2)]
        assert again == [key._replace(attempt=1) for key in (finished.key, running.key)], "they come first"

    with_bench(tmp_path, body, **OVERSAMPLED)


def test_what_is_dropped_without_end_ends_the_run_with_the_reasons(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.finish_and_keep(bench.admit())
        for reason in ("zero_spread", "zero_spread", "length"):
            admission = bench.admit()
            await bench.finish(group(admission))
            bench.flow.drop(admission.key, reason)
        bench.flow.hand_back(bench.admit().key, "failed: reward_died")
        says = (
            r"4 groups were dropped while batch 0 was composed "
            r"\(zero_spread 2, length 1, again: failed: reward_died 1\), and it has 1 of 2: .*--resume the run"
        )
        with pytest.raises(NothingToTrain, match=says):
            bench.flow.admit(0)

    with_bench(tmp_path, body, max_drops=4)


FAULT = "KeyError: 'x' (filters.py, line 3)"


def test_a_filter_that_always_raises_ends_the_run_after_a_batchs_worth_with_its_words(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        for _ in range(8):
            admission = bench.admit()
            await bench.finish(group(admission))
            bench.flow.drop(admission.key, "filter_error", FAULT)
        with pytest.raises(
            NothingToTrain, match=r"all of the first 8 groups were dropped \(filter_error, the last one"
        ):
            bench.flow.admit(0)
        assert bench.flow.drop_words == {"filter_error": FAULT}

    with_bench(tmp_path, body, prompts=10)


@pytest.mark.parametrize(("first", "faults"), [("kept", 4), ("dropped on purpose", 3)])
def test_a_filter_that_sometimes_raises_is_told_with_its_words_when_too_many_are_dropped(
    tmp_path: Path, first: str, faults: int
) -> None:
    async def body(bench: Bench) -> None:
        admission = bench.admit()
        await bench.finish(group(admission))
        if first == "kept":
            bench.flow.keep(admission.key)
        else:
            bench.flow.drop(admission.key, "zero_spread")
        for _ in range(faults):
            admission = bench.admit()
            await bench.finish(group(admission))
            bench.flow.drop(admission.key, "filter_error", FAULT)
        with pytest.raises(NothingToTrain) as end:
            bench.flow.admit(0)
        assert f"filter_error {faults}, the last one with {FAULT!r}" in str(end.value)
        assert "mend what fails" in str(end.value)
        assert "too easy" not in str(end.value)

    with_bench(tmp_path, body, max_drops=4)


def test_a_batch_says_what_was_dropped_while_it_was_composed(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        bench.flow.drop(bench.admit().key, "zero_spread")
        for _ in range(2):
            await bench.finish_and_keep(bench.admit())
        for consumer in ("filter", "actor"):
            while (lease := bench.table.try_lease(consumer, list)) is not None:
                bench.table.ack(lease)
        assert bench.flow.step().dropped == {"zero_spread": 1}

    with_bench(tmp_path, body)


def test_drops_count_anew_in_each_batch_and_a_surplus_does_not_count(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        for version in range(3):
            dropped = bench.admit(version)
            await bench.finish(group(dropped))
            bench.flow.drop(dropped.key, "zero_spread")
            rest = [bench.admit(version) for _ in range(4)]
            for admission in rest[2:]:
                await bench.finish_and_keep(admission)
            for admission in rest[:2]:
                bench.flow.hand_back(admission.key, bench.flow.reason_overdue)
            assert bench.flow.admit(version) is None
            bench.train()
        # Of the first two surplus prompts one is filtered out, and one is surplus again: two attempts are all.
        assert bench.store.ledger.counts().dropped == {
            "zero_spread": 3,
            "again: surplus": 5,
            "exhausted (surplus)": 1,
        }

    with_bench(tmp_path, body, prompts=40, max_drops=2, **OVERSAMPLED)


def test_a_restore_brings_back_more_groups_than_the_table_holds(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        for _ in range(15):
            for _ in range(2):
                await bench.finish_and_keep(bench.admit(version=bench.flow.batch))
            bench.train()
        again, number = reopen(bench)
        assert number == 0
        assert again.table.groups == 30
        assert again.flow.admit(0) is None, "nothing starts until there is room again"
        await again.runtime.close()

    with_bench(tmp_path, body, prompts=40, batches=20)


def test_a_restore_brings_back_more_bytes_than_the_table_holds(tmp_path: Path) -> None:
    """Groups of 3 tokens, of 17 bytes each. Three of them come back to a table of 60 bytes; the batch takes two."""

    async def body(bench: Bench) -> None:
        for _ in range(2):
            await bench.finish_and_keep(bench.admit())
        bench.train()
        await bench.finish_and_keep(bench.admit(1))
        again, _ = reopen(bench, table_bytes=60, group_bytes=51)
        assert again.table.nbytes == 3 * 51
        assert again.flow.admit(0) is None
        for place in range(3):
            again.flow.keep(GroupKey(0, place, 0))
        again.train()
        assert (again.table.nbytes, again.flow.ready_groups) == (51, 0)
        assert again.flow.admit(1) is not None, "the next batch has one of its two"
        assert again.flow.admit(1) is None
        await again.runtime.close()

    with_bench(tmp_path, body)


@examples(max_examples=40, deadline=None)
@given(
    rule=st.sampled_from(["wait", "mask", "drop", "late"]),
    max_staleness=st.integers(0, 3),
    ahead=st.integers(2, 9),
    largest=st.integers(2, 12),
    table_groups=st.sampled_from([0.0, 0.4, 1.0, 2.0, 3.5]),
    data=st.data(),
)
def test_whatever_the_sizes_and_the_bound_the_run_ends_and_the_table_holds_no_more_than_promised(
    rule: str, max_staleness: int, ahead: int, largest: int, table_groups: float, data: st.DataObject
) -> None:
    """`largest`: tokens of the largest group, of 17 bytes each. `table_groups`: so many of it are the bound."""
    group_bytes = 17 * largest
    table_bytes = table_groups * group_bytes

    async def body(bench: Bench) -> None:
        flow, table, running = bench.flow, bench.table, []
        while not flow.is_finished:
            while (admission := flow.admit(flow.batch)) is not None:
                running.append(admission)
                assert table.nbytes <= max(table_bytes, 2 * group_bytes)
            if flow.is_sealed:
                bench.train()
            elif not flow.is_finished:
                assert running, "deadlock"
            for key in flow.overdue():
                running = [one for one in running if one.key != key]
                flow.hand_back(key, flow.reason_overdue)
            if running:
                admission = running.pop(data.draw(st.integers(0, len(running) - 1)))
                end = data.draw(st.sampled_from(["kept", "kept", "dropped", "failed"]))
                if end == "failed":
                    flow.hand_back(admission.key, "failed: engine")
                    continue
                await bench.finish(group(admission, tokens=data.draw(st.integers(1, largest))))
                if end == "kept":
                    flow.keep(admission.key)
                else:
                    flow.drop(admission.key, "zero_spread")
        assert table.nbytes == 0

    with TemporaryDirectory() as folder:
        with_bench(
            Path(folder),
            body,
            on_deadline=rule,
            prompts=14,
            batches=5,
            max_staleness=max_staleness,
            ahead=ahead,
            table_bytes=table_bytes,
            group_bytes=group_bytes,
        )


def test_groups_come_back_in_the_order_in_which_they_finished(tmp_path: Path) -> None:
    """Where more are ready than a batch takes, the same ones enter it as before."""

    async def body(bench: Bench) -> None:
        admissions = [bench.admit() for _ in range(3)]
        for place in (2, 0, 1):
            await bench.finish(group(admissions[place]))
        again, _ = reopen(bench)
        lease = again.table.try_lease("filter", list)
        assert lease is not None
        assert [row.group.position for row in lease.rows] == [2, 0, 1]
        await again.runtime.close()

    with_bench(tmp_path, body)


def test_a_filters_drop_is_not_taken_for_a_prompt_handed_back(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        admission = bench.admit()
        await bench.finish(group(admission))
        bench.flow.drop(admission.key, "failed")
        again, _ = reopen(bench)
        assert again.admit().key.position == admission.key.position + 1
        await again.runtime.close()

    with_bench(tmp_path, body)


def test_the_loader_ends_when_the_last_groups_of_the_dataset_are_dropped(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        loader = StreamingLoader(
            bench.table, bench.flow, consumer="actor", max_tokens=100, streaming=True, timeout_s=5.0
        )
        admission = bench.admit()
        assert bench.flow.admit(0) is None

        async def consume() -> list[object]:
            return [lease async for lease in loader.leases(0)]

        consuming = asyncio.create_task(consume())
        await bench.finish(group(admission))
        bench.flow.drop(admission.key, "zero_spread")
        assert await asyncio.wait_for(consuming, 2) == []
        assert bench.flow.is_finished

    with_bench(tmp_path, body, prompts=1)


def test_what_stalls_is_told_in_words(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        admission = bench.admit()
        await bench.finish(group(admission))
        bench.flow.drop(admission.key, "zero_spread")
        bench.admit()
        assert bench.flow.describe() == (
            "0 of 2 groups taken, 1 running, 0 ready; dropped since the last step: zero_spread 1"
        )

    with_bench(tmp_path, body)


@pytest.mark.parametrize("seed", [0, 1])
def test_each_prompt_of_an_epoch_is_issued_once(tmp_path: Path, seed: int) -> None:
    async def body(bench: Bench) -> None:
        seen = []
        while not bench.flow.is_finished:
            admission = bench.flow.admit(9)
            if admission is not None:
                seen.append(admission.prompt.prompt_id)
                await bench.finish_and_keep(admission)
            if bench.flow.is_sealed and not bench.flow.is_finished:
                bench.train()
        assert sorted(seen) == [str(place) for place in range(8)]

    with_bench(tmp_path / str(seed), body)


def loaded(bench: Bench, max_tokens: int) -> tuple[asyncio.Task[None], list[int]]:
    """A consumer of batch 0, and the tokens of each micro-batch that it has got so far."""
    loader = StreamingLoader(
        bench.table, bench.flow, consumer="actor", max_tokens=max_tokens, streaming=True, timeout_s=5.0
    )
    sizes: list[int] = []

    async def consume() -> None:
        async for lease in loader.leases(0):
            tokens = sum(row.header.length for row in lease.rows)
            sizes.append(tokens)

    return asyncio.create_task(consume()), sizes


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_the_loader_waits_for_a_full_micro_batch_and_no_longer_than_the_batch(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        consuming, sizes = loaded(bench, max_tokens=6)
        first, second = bench.admit(), bench.admit()
        await bench.finish(group(first, tokens=5))
        bench.flow.keep(first.key)
        await settle()
        assert sizes == [], "more rows of the batch are to come"
        await bench.finish(group(second, tokens=4))
        bench.flow.keep(second.key)
        await asyncio.wait_for(consuming, 2)
        assert sizes == [9], "what is left when all is there is one lease"

    with_bench(tmp_path, body)


@pytest.mark.parametrize("max_tokens", [6, None])
def test_a_batch_that_is_all_there_comes_in_order_of_its_keys(tmp_path: Path, max_tokens: int | None) -> None:
    async def body(bench: Bench) -> None:
        loader = StreamingLoader(
            bench.table, bench.flow, consumer="actor", max_tokens=max_tokens, streaming=False, timeout_s=5.0
        )
        first, second = bench.admit(), bench.admit()
        await bench.finish(group(second, tokens=7))
        bench.flow.keep(second.key)
        await settle()
        await bench.finish_and_keep(first)
        leases = [lease async for lease in loader.leases(0)]
        assert [[row.group for row in lease.rows] for lease in leases] == [[first.key, second.key]]

    with_bench(tmp_path, body)


def test_a_full_micro_batch_goes_out_before_the_batch_is_whole(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        consuming, sizes = loaded(bench, max_tokens=6)
        first, second = bench.admit(), bench.admit()
        await bench.finish(group(first, tokens=6))
        bench.flow.keep(first.key)
        await settle()
        assert sizes == [6]
        await bench.finish_and_keep(second)
        await asyncio.wait_for(consuming, 2)
        assert sizes == [6, 3]

    with_bench(tmp_path, body)


def test_the_loader_hands_out_the_rest_when_the_batch_closes_short(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        consuming, sizes = loaded(bench, max_tokens=100)
        first, second = bench.admit(), bench.admit()
        await bench.finish_and_keep(first)
        await bench.finish(group(second))
        await settle()
        assert sizes == []
        bench.flow.drop(second.key, "zero_spread")
        assert bench.flow.admit(0) is None, "the dataset is spent"
        await asyncio.wait_for(consuming, 2)
        assert sizes == [3]

    with_bench(tmp_path, body, prompts=2)
