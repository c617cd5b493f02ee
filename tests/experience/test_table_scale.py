"""Index, samplers and loader choose as the plain ones do, which look at every row, whatever the events are; and no
wake-up is lost, though only those are woken whom an event concerns."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import table_oracle as plain
from table_rows import new_row

from headrace.experience import samplers
from headrace.experience.flow import Admission, Flow
from headrace.experience.index import Sampler, TableIndex
from headrace.experience.leases import Consumer, Lease, NewRow, TableError
from headrace.experience.loader import StreamingLoader, row_length
from headrace.experience.prompts.dataset import Prompt, PromptDataset, PromptOrder, PromptSource
from headrace.experience.records.group_journal import GroupJournal
from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus
from headrace.experience.schedule import Schedule
from headrace.experience.table import ExperienceTable
from headrace.runtime.inline import InlineRuntime, SystemClock
from headrace.store import RunStore

QUICK, SLOW, ALL = 600, 8_000, 30_000
"""Sequences of events; all of them in `make soak`."""
CONSUMERS = (
    Consumer("filter", frozenset({"reward"}), "group"),
    Consumer("reference", frozenset({"tokens", "keep"})),
    Consumer("advantages", frozenset({"reward", "reference", "keep"}), "group"),
    Consumer("stage", frozenset({"tokens", "batch"})),
    Consumer("actor", frozenset({"tokens", "reference", "batch"})),
    Consumer("batches", frozenset({"reward", "batch"}), "group"),
    Consumer("nothing", frozenset()),
)


@dataclass
class FlowStandIn:
    """What a choice looks at beside the rows."""

    batch: int = 0
    is_sealed: bool = False
    rows: int = 0

    def rows_of_batch(self) -> int:
        return self.rows


class Tables:
    """Both indices, given the same events."""

    def __init__(self, chance: random.Random) -> None:
        consumers = chance.sample(CONSUMERS, chance.randint(2, len(CONSUMERS)))
        self.chance = chance
        self.names = [consumer.name for consumer in consumers]
        self.by_batch = [consumer.name for consumer in consumers if "batch" in consumer.reads]
        self.plain, self.fast = plain.PlainIndex(consumers), TableIndex(consumers)
        self.flow = FlowStandIn()
        self.leases: list[tuple[Lease, Lease]] = []
        self.groups: list[GroupKey] = []
        self.ids: list[int] = []
        self.time = 0.0
        self.seen: Counter[str] = Counter()

    def same(self, event: str, first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, Any]:
        answers: list[Any] = []
        for index, arguments in ((self.plain, first), (self.fast, second)):
            try:
                answers.append(getattr(index, event)(*arguments))
            except TableError as error:
                answers.append(f"{type(error).__name__}: {error}")
        if isinstance(answers[0], Lease) and isinstance(answers[1], Lease):
            assert told(answers[0]) == told(answers[1])
        elif event == "expire":
            assert [told(lease) for lease in answers[0]] == [told(lease) for lease in answers[1]]
            self.seen["expired"] += len(answers[0])
        else:
            assert answers[0] == answers[1], f"{event}{first}: {answers}"
        self.seen[f"{event} refused" if isinstance(answers[0], str) else event] += 1
        return answers[0], answers[1]

    def compare(self) -> None:
        assert (self.plain.rows, self.plain.groups) == (self.fast.rows, self.fast.groups)
        for name in self.names:
            old, new = self.plain.ready(name), self.fast.ready(name)
            assert list(old) == list(new), name
            assert {i: row.columns for i, row in old.items()} == {i: row.columns for i, row in new.items()}
            assert self.plain.next_expiry(name) == self.fast.next_expiry(name)
        for one, other in self.leases:
            assert told(one) == told(other)

    def choices(self, name: str) -> tuple[str, Callable[[Any], Any], Callable[[Any], Any]]:
        """A sampler of both kinds."""
        chance, budget = self.chance, self.chance.choice((1, 5, 9, 20, 60, 1_000))
        kind = chance.choice(("whole_groups", "one_row", "token_budget", "list"))
        if name in self.by_batch:
            kind = chance.choice((kind, "sealed_batch", "streaming", "loader", "loader"))
        if kind == "token_budget":
            return kind, plain.token_budget(budget, row_length), samplers.token_budget(budget, row_length)
        if kind == "list":
            return kind, list, list
        if kind == "sealed_batch":
            return kind, plain.sealed_batch(self.flow), samplers.sealed_batch(self.flow)  # type: ignore[arg-type]
        if kind in ("loader", "streaming"):
            handed_out, streaming = chance.choice((0, 0, 1, 3)), kind == "streaming"
            loader = StreamingLoader(
                None,  # type: ignore[arg-type]
                self.flow,  # type: ignore[arg-type]
                consumer=name,
                max_tokens=budget,
                streaming=streaming,
                timeout_s=1.0,
            )
            batch = self.flow.batch
            return (
                kind,
                lambda ready: plain.choose(
                    self.flow, batch, handed_out, ready, max_tokens=budget, streaming=streaming, length=row_length
                ),
                partial(loader._choose, batch, handed_out),
            )
        return kind, getattr(plain, kind), getattr(samplers, kind)

    def put(self) -> None:
        key = GroupKey(0, len(self.groups), 0) if self.chance.random() < 0.97 or not self.groups else self.groups[-1]
        lengths = [self.chance.randint(0, 12) for _ in range(self.chance.randint(0 if self.groups else 1, 5))]
        there = [name for name in ("keep", "reference") if self.chance.random() < 0.2]

        def rows() -> list[NewRow]:
            own = ({"tokens": range(length), "reward": 1.0, **dict.fromkeys(there, 0)} for length in lengths)
            return [new_row(key, columns) for columns in own]

        ids, _ = self.same("put", (key, rows()), (key, rows()))
        if isinstance(ids, list):
            self.groups.append(key)
            self.ids += ids

    def write(self) -> None:
        chance = self.chance
        column = chance.choice(("keep", "reference", "batch", "batch"))
        value = chance.choice((0, 0, 1, 2)) if column == "batch" else 0
        if chance.random() < 0.6:
            key = chance.choice(self.groups)
            self.same("write_group", (key, column, value), (key, column, value))
            return
        leases: tuple[Any, Any] = (None, None)
        if self.leases and chance.random() < 0.5:
            leases = chance.choice(self.leases)
            ids = [row.row_id for row in leases[0].rows]
        else:
            ids = chance.sample(self.ids[-20:], min(len(self.ids), chance.randint(1, 4)))
        both = ((ids, column, [value] * len(ids), lease) for lease in leases)
        self.same("write", next(both), next(both))

    def lease(self) -> None:
        name = self.chance.choice(self.names)
        self.flow.batch, self.flow.is_sealed = self.chance.choice((0, 0, 1, 2)), self.chance.random() < 0.5
        ready = [row for row in self.plain.ready(name).values() if row.columns.get("batch") == self.flow.batch]
        self.flow.rows = len(ready) + self.chance.choice((0, 0, 1, 3))
        kind, old, new = self.choices(name)
        chosen = old(self.plain.ready(name)), new(self.fast.ready(name))
        assert list(chosen[0]) == list(chosen[1]), kind
        ids = list(chosen[0])
        if self.chance.random() < 0.02:
            ids = list(dict.fromkeys((*ids, self.chance.choice(self.ids or [0]))))
        if ids:
            self.seen[kind] += 1
            expires = self.time + self.chance.choice((1.0, 2.0, 5.0, math.inf))
            pair = self.same("lease", (name, ids, expires), (name, ids, expires))
            if isinstance(pair[0], Lease):
                self.leases.append(pair)

    def step(self) -> None:
        draw, chance = self.chance.random(), self.chance
        if draw < 0.2 or not self.groups:
            self.put()
        elif draw < 0.45:
            self.write()
        elif draw < 0.7:
            self.lease()
        elif draw < 0.75:
            self.time += chance.choice((0.0, 0.5, 1.0, 3.0))
            self.same("expire", (self.time,), (self.time,))
        elif draw < 0.79:
            key = chance.choice(self.groups)
            self.same("remove", (key,), (key,))
        elif self.leases:
            pair = chance.choice(self.leases)
            event = chance.choice(("ack", "ack", "ack", "give_back", "renew", "renew"))
            more = (self.time + chance.choice((-1.0, 0.5, 2.0, math.inf)),) if event == "renew" else ()
            self.same(event, (pair[0], *more), (pair[1], *more))
            if event != "renew" and chance.random() < 0.9:
                self.leases.remove(pair)
        self.compare()


def told(lease: Lease) -> tuple[Any, ...]:
    return lease.lease_id, lease.consumer, [row.row_id for row in lease.rows], lease.expires


def drive_many(seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        chance = random.Random(seed)
        tables = Tables(chance)
        try:
            for _ in range(chance.choice((10, 40, 120))):
                tables.step()
        except AssertionError as error:
            raise AssertionError(f"sequence {seed}: {error}") from error
        seen.update(tables.seen)
    return seen


def test_every_choice_is_the_plain_tables() -> None:
    seen = drive_many(range(QUICK))
    events = ("put", "write", "write_group", "lease", "ack", "give_back", "renew", "remove", "expired")
    kinds = ("whole_groups", "one_row", "token_budget", "list", "sealed_batch", "loader", "streaming")
    refusals = [f"{event} refused" for event in ("put", "write", "lease", "ack", "give_back", "renew", "remove")]
    assert not [name for name in (*events, *kinds, *refusals) if seen[name] < 20], seen


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(QUICK, SLOW), pytest.param(range(SLOW, ALL), marks=pytest.mark.soak)])
def test_every_choice_is_the_plain_tables_thousands_of_times(seeds: range) -> None:
    """Two to four minutes all of them."""
    drive_many(seeds)


class StandingClock(SystemClock):
    def now(self) -> float:
        return 0.0


async def settle() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(20))
def test_nobody_waits_for_rows_that_it_could_have(seed: int) -> None:
    """Whatever happens to the table, whoever still waits would choose nothing."""

    async def main() -> None:
        chance = random.Random(seed)
        table = ExperienceTable(CONSUMERS, capacity=1_000, lease_s=10.0, clock=StandingClock())
        held: list[Lease] = []
        choosers: dict[str, Sampler] = {
            "filter": samplers.whole_groups,
            "reference": samplers.token_budget(9, row_length),
            "advantages": samplers.whole_groups,
            "stage": samplers.one_row,
            "actor": lambda ready: ready.fitting(9, row_length) if len(ready) > 3 else [],
            "batches": samplers.whole_groups,
        }
        waiting: dict[str, asyncio.Task[Lease | None]] = {}

        def wait(name: str) -> None:
            lease = table.lease(name, choosers[name], seconds=60, what=lambda: name)
            waiting[name] = asyncio.create_task(lease)

        for name in choosers:
            wait(name)
        count = 0
        for _ in range(120):
            draw = chance.random()
            if draw < 0.3:
                key = GroupKey(0, count, 0)
                count += 1
                table.reserve(key)
                columns = [{"tokens": range(chance.randint(1, 9)), "reward": 1.0} for _ in range(3)]
                table.put(key, [new_row(key, one) for one in columns])
            elif draw < 0.6 and count:
                key, column = GroupKey(0, chance.randrange(count), 0), chance.choice(("keep", "reference", "batch"))
                try:
                    table.write_group(key, column, 0)
                except TableError:
                    continue
            elif draw < 0.65 and count:
                table.remove(GroupKey(0, chance.randrange(count), 0))
            elif held:
                lease = held.pop(chance.randrange(len(held)))
                (table.ack if chance.random() < 0.6 else table.give_back)(lease)
            await settle()
            for name, task in list(waiting.items()):
                if task.done():
                    lease_or_none = task.result()
                    assert lease_or_none is not None
                    held.append(lease_or_none)
                    wait(name)
            await settle()
            for name, task in waiting.items():
                assert task.done() or not choosers[name](table._index.ready(name)), name
        for task in waiting.values():
            task.cancel()
        await asyncio.gather(*waiting.values(), return_exceptions=True)

    asyncio.run(main())


def test_who_waits_beside_a_holder_takes_over_when_the_lease_ends() -> None:
    """The lease had no end when the other began to wait."""

    async def main() -> None:
        table = ExperienceTable([CONSUMERS[0]], capacity=4, lease_s=0.05, clock=SystemClock())
        table.reserve(GroupKey(0, 0, 0))
        table.put(GroupKey(0, 0, 0), [new_row(GroupKey(0, 0, 0), {"reward": 1.0})])
        first = table.try_lease("filter", samplers.whole_groups)
        assert first is not None
        table.hold(first)
        waiting = asyncio.create_task(table.lease("filter", samplers.whole_groups, seconds=5, what=lambda: "a group"))
        await settle()
        table.renew(first)
        second = await asyncio.wait_for(waiting, 2)
        assert second is not None
        assert second.rows == first.rows

    asyncio.run(main())


class Run:
    """A run's loops over a real store, with nothing behind them: groups end, fail and are dropped by chance."""

    def __init__(self, store: RunStore, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        rule = chance.choice(("wait", "mask", "drop", "late"))
        batch = chance.randint(1, 4)
        prompts = chance.randint(1, 60)
        self.runtime = InlineRuntime()
        ahead = batch + chance.randint(0, 8)
        self.table = ExperienceTable(
            [
                Consumer("filter", frozenset({"reward"}), "group"),
                Consumer("reference", frozenset({"tokens", "keep"})),
                Consumer("whole", frozenset({"tokens", "batch"})),
                Consumer("actor", frozenset({"tokens", "reference", "advantage", "batch"})),
            ],
            capacity=ahead + 10 * batch,
            lease_s=60.0,
            clock=self.runtime.clock,
        )
        schedule = Schedule(
            prompts_per_batch=batch,
            max_staleness=chance.randint(0, 3),
            total_batches=chance.randint(1, 12),
            on_deadline=rule,  # type: ignore[arg-type]
            ahead=ahead,
            surplus=chance.randint(0, batch) if rule == "drop" else 0,
        )
        dataset = PromptDataset([Prompt(str(place), "", {}) for place in range(prompts)])
        order = PromptOrder(prompts, seed=0, shuffle=True)
        source = PromptSource(dataset, order, epochs=1, max_attempts=2)
        self.flow = Flow(schedule, self.table, source, store)
        self.journal = GroupJournal(store.writer, self.runtime, self.table.refs)
        self.drops = chance.choice((0.0, 0.2))
        self.fails = chance.choice((0.0, 0.2))
        self.budget = chance.choice((None, 5, 12))
        self.streaming = chance.random() < 0.7
        self.trained = 0

    async def rollout(self) -> None:
        running: list[Admission] = []
        while not self.flow.is_finished:
            for key in self.flow.overdue():
                running = [admission for admission in running if admission.key != key]
                self.flow.hand_back(key, self.flow.reason_overdue)
            while (admission := self.flow.admit(self.flow.batch)) is not None:
                running.append(admission)
            if running and self.chance.random() < 0.8:
                admission = running.pop(self.chance.randrange(len(running)))
                if self.chance.random() < self.fails:
                    self.flow.hand_back(admission.key, "failed")
                else:
                    group = self.group(admission)
                    self.flow.finish(*await self.journal.write(group))
                await asyncio.sleep(0)
            elif running:
                await asyncio.sleep(0)
            elif not self.flow.is_finished:
                await self.flow.changed.wait(self.runtime.clock, 10, "the gate")

    def group(self, admission: Admission) -> Group:
        samples = []
        for episode in range(self.chance.randint(1, 3)):
            length = self.chance.randint(1, 6)
            samples.append(
                Sample(
                    group=admission.key,
                    episode=episode,
                    index=0,
                    tokens=np.zeros(length, np.int32),
                    loss_mask=np.ones(length, np.bool_),
                    logprobs=np.zeros(length, np.float32),
                    versions=np.zeros(length, np.int32),
                    branches=np.zeros(length, np.int32),
                    status=SampleStatus.COMPLETED,
                    reward=1.0,
                )
            )
        return Group(
            admission.key, admission.prompt.prompt_id, admission.start_version, admission.deadline, tuple(samples)
        )

    async def stage(self, name: str, sampler: Sampler, done: Callable[[Lease], None]) -> None:
        while not self.flow.is_finished:
            lease = await self.table.lease(
                name, sampler, seconds=10, what=lambda: name, until=lambda: self.flow.is_finished
            )
            if lease is not None:
                done(lease)

    def judge(self, lease: Lease) -> None:
        self.table.ack(lease)
        key = lease.rows[0].group
        if self.chance.random() < self.drops:
            self.flow.drop(key, "dull")
        else:
            self.flow.keep(key)

    def fill(self, column: str) -> Callable[[Lease], None]:
        def done(lease: Lease) -> None:
            self.table.write([row.row_id for row in lease.rows], column, [0.0] * len(lease.rows), lease)
            self.table.ack(lease)

        return done

    async def actor(self) -> None:
        loader = StreamingLoader(
            self.table,
            self.flow,
            consumer="actor",
            max_tokens=self.budget,
            streaming=self.streaming,
            timeout_s=10,
        )
        while not self.flow.is_finished:
            leases = [lease async for lease in loader.leases(self.flow.batch)]
            if not leases:
                continue
            self.table.ack(*leases)
            self.flow.step()
            self.trained += 1

    async def run(self) -> None:
        await asyncio.gather(
            self.rollout(),
            self.stage("filter", samplers.whole_groups, self.judge),
            self.stage("reference", samplers.token_budget(9, row_length), self.fill("reference")),
            self.stage("whole", samplers.sealed_batch(self.flow), self.fill("advantage")),
            self.actor(),
        )
        await self.runtime.close()


@pytest.mark.parametrize("seed", range(25))
def test_every_run_of_waiting_loops_ends(tmp_path: Path, seed: int) -> None:
    """A wake-up that is lost ends a wait by its time limit, which is an error."""
    store = RunStore.create(tmp_path / "run", config_yaml="", config_sha256="x", now=0.0)
    run = Run(store, seed)
    asyncio.run(run.run())
    assert run.flow.is_finished
    store.ledger.counts().check()
    store.close()
