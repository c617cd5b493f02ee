"""A curriculum by pass rates over a real ledger: what counts when, and what a crash takes back."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import numpy as np

from headrace.experience.columns import FinishedGroup, put_samples
from headrace.experience.flow import Admission, Flow
from headrace.experience.header import header_of
from headrace.experience.leases import Consumer
from headrace.experience.prompts.dataset import Prompt, PromptDataset, PromptOrder, PromptSource
from headrace.experience.prompts.pass_rates import PassRates
from headrace.experience.prompts.prompt_order import MixedOrder, PassRateOrder
from headrace.experience.records.codec import encode_group
from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus
from headrace.experience.schedule import Schedule
from headrace.experience.table import ExperienceTable
from headrace.runtime.inline import InlineRuntime
from headrace.store import RunStore

PROMPTS, BATCH = 4, 2


def group(admission: Admission, *rewards: float | None) -> Group:
    samples = tuple(
        Sample(
            group=admission.key,
            episode=episode,
            index=0,
            tokens=np.arange(3, dtype=np.int32),
            loss_mask=np.array([False, True, True]),
            logprobs=np.zeros(3, np.float32),
            versions=np.array([-1, 0, 0], np.int32),
            branches=np.array([-1, 0, 0], np.int32),
            status=SampleStatus.COMPLETED if reward is not None else SampleStatus.FAILED,
            reward=reward,
            failure=None if reward is not None else "reward: none",
        )
        for episode, reward in enumerate(rewards)
    )
    return Group(
        admission.key, admission.prompt.prompt_id, admission.start_version, admission.deadline, samples, admission.issue
    )


def open_flow(folder: Path) -> tuple[Flow, RunStore]:
    """On policy; the rows are as in the file where nothing else orders them."""
    if RunStore.exists(folder):
        store = RunStore.open(folder, config_sha256="a")
    else:
        store = RunStore.create(folder, config_yaml="", config_sha256="a", now=0.0)
    order = MixedOrder([PassRateOrder(PromptOrder(PROMPTS, 0, shuffle=False), 0.5)], [PROMPTS], [1])
    order.restore(store.ledger.drawn())
    last = store.ledger.frontier()
    source = PromptSource(
        PromptDataset([Prompt(f"p{i}", "x", {}) for i in range(PROMPTS)]),
        order,
        epochs=None,
        max_attempts=3,
        frontier=None if last is None else (last[0], last[1] + 1),
        drawn=store.ledger.row,
    )
    runtime = InlineRuntime()
    table = ExperienceTable(
        [Consumer("actor", frozenset({"tokens", "keep", "batch"}))],
        capacity=32,
        capacity_bytes=math.inf,
        group_bytes=0,
        lease_s=60,
        clock=runtime.clock,
    )
    schedule = Schedule(BATCH, max_staleness=0, total_batches=20, on_deadline="wait", ahead=BATCH)
    flow = Flow(schedule, table, source, store, pass_rates=PassRates(order, passes_above=0.5))
    restored = store.checkpoints.restore()
    flow.restore(restored.number, restored.ready, restored.running)
    return flow, store


def admit(flow: Flow) -> list[Admission]:
    admitted = []
    while (admission := flow.admit(flow.batch)) is not None:
        admitted.append(admission)
    return admitted


def finish(flow: Flow, store: RunStore, group: Group) -> None:
    place = store.writer.append(group.key, encode_group(group), issue=group.issue)
    store.writer.sync()
    finished = FinishedGroup(header_of(group), put_samples(flow._table.refs, group))
    flow.finish(finished, store.writer.receipt(group.key, place, issue=group.issue))


async def train(flow: Flow, store: RunStore, *rewards: tuple[float | None, ...]) -> list[str]:
    """A batch whose groups earn these; the prompts that it was made of."""
    admitted = admit(flow)
    for admission, earned in zip(admitted, rewards, strict=True):
        finish(flow, store, group(admission, *earned))
        flow.keep(admission.key)
    flow.step()
    return [admission.prompt.prompt_id for admission in admitted]


def test_untried_prompts_come_first_then_those_nearest_to_the_target(tmp_path: Path) -> None:
    async def run() -> None:
        flow, store = open_flow(tmp_path)
        assert await train(flow, store, (1.0, 1.0), (1.0, 0.0)) == ["p0", "p1"]
        assert await train(flow, store, (0.0, 0.4), (1.0, None)) == ["p2", "p3"]
        rates = store.ledger.pass_rates(0, 99)
        assert rates == [(0, 1.0), (1, 0.5), (2, 0.0), (3, 1.0)], "a sample without a reward does not count"
        assert store.ledger.pass_rates(1, 2) == rates[2:]
        first, second = admit(flow)
        assert [first.prompt.prompt_id, second.prompt.prompt_id] == ["p1", "p0"], "0.5, then one of those at a distance"
        store.close()

    asyncio.run(run())


def test_what_is_learnt_while_a_batch_is_composed_counts_from_the_next_one_on(tmp_path: Path) -> None:
    """So which prompt replaces one that was dropped does not depend on who ended first."""

    async def run() -> None:
        flow, store = open_flow(tmp_path)
        first, second = admit(flow)
        finish(flow, store, group(first, 1.0, 0.0))
        flow.drop(first.key, "filtered")
        (third,) = admit(flow)
        assert third.prompt.prompt_id == "p2"
        finish(flow, store, group(second, 1.0, 1.0))
        flow.keep(second.key)
        finish(flow, store, group(third, 0.0, 0.0))
        flow.keep(third.key)
        flow.step()
        assert store.ledger.pass_rates(0, 1) == [(0, 0.5), (1, 1.0), (2, 0.0)], "dropped ones count as well"
        assert [admission.prompt.prompt_id for admission in admit(flow)] == ["p3", "p0"]
        store.close()

    asyncio.run(run())


def test_a_crash_before_any_commit_draws_the_same_prompts_again_and_keeps_pass_rates(tmp_path: Path) -> None:
    async def run() -> None:
        flow, store = open_flow(tmp_path)
        await train(flow, store, (1.0, 1.0), (0.0, 0.0))
        await train(flow, store, (1.0, 0.0), (1.0, 1.0))
        third, fourth = admit(flow)
        assert [third.prompt.prompt_id, fourth.prompt.prompt_id] == ["p2", "p0"]
        # The group is in the journal, and the crash comes before the ledger hears of it.
        store.writer.append(third.key, encode_group(group(third, 0.0, 1.0)))
        store.writer.sync()
        store.close()

        flow, store = open_flow(tmp_path)
        assert flow.batch == 0, "nothing was committed"
        assert flow.running_groups == 5, "five groups come back, for the filter to look at again"
        assert store.ledger.pass_rates(2, 3) == [(2, 0.5)], "it is scored now, for the batch that it is of"
        for key in ((0, 0), (0, 1), (0, 2), (0, 3), (1, 0)):
            flow.keep(GroupKey(*key, 0))
            if flow.is_sealed:
                flow.step()
        assert flow.batch == 2
        (again,) = admit(flow)
        assert (again.key, again.prompt.prompt_id) == (fourth.key, "p0"), "the row is the ledger's"
        finish(flow, store, group(again, 1.0, 1.0))
        flow.keep(again.key)
        flow.step()
        assert [admission.prompt.prompt_id for admission in admit(flow)] == ["p1", "p3"], "the rest of the epoch"
        store.ledger.counts().check()
        store.close()

    asyncio.run(run())


def test_a_prompt_that_is_handed_back_is_the_same_one_the_next_time(tmp_path: Path) -> None:
    async def run() -> None:
        flow, store = open_flow(tmp_path)
        first, _ = admit(flow)
        flow.hand_back(first.key, "failed: timeout")
        (again,) = admit(flow)
        assert again.key == GroupKey(0, 0, 1)
        assert again.prompt.prompt_id == first.prompt.prompt_id
        store.close()

        flow, store = open_flow(tmp_path)
        flow.hand_back(admit(flow)[1].key, "failed: timeout")
        third = [admission for admission in admit(flow) if admission.key == GroupKey(0, 0, 2)]
        assert [admission.prompt.prompt_id for admission in third] == [first.prompt.prompt_id]
        store.close()

    asyncio.run(run())
