"""What the controller itself spends on a group: schedule, flow, ledger, table and loaders, through admit -> trained.

python -m benchmarks.pure_logic [--batch 128 1024] [--groups 8192] [--runs 3] [--folder /dev/shm]

Groups of 16 rows at max_staleness 4, five batches ahead. They end in a random order; a filter, a reference and the
advantages lease their rows, then an actor and a critic lease the batch in micro-batches of about eight rows. Nothing
is computed and no clock is waited for. The store is a real one in `--folder`, which is best held in memory. Making the
groups is not counted, nor are the first and the last batches of a run; processor seconds of all threads are.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks.machine import save
from headrace.experience.dataset import Prompt, PromptDataset, PromptOrder, PromptSource
from headrace.experience.flow import Admission, Flow
from headrace.experience.group_journal import GroupJournal
from headrace.experience.index import Consumer, Sampler
from headrace.experience.loader import StreamingLoader, row_length
from headrace.experience.sample import Group, Sample, SampleStatus
from headrace.experience.samplers import token_budget, whole_groups
from headrace.experience.schedule import Schedule
from headrace.experience.table import ExperienceTable, Lease
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.signal import Signal
from headrace.store import RunStore

T = TypeVar("T")

ROWS, MAX_STALENESS, AHEAD_BATCHES = 16, 4, 5
TOKENS = (8, 25)
"""Of a row: from, below. Rows differ, so that micro-batches do."""
MICRO_TOKENS = 128
WARM_UP, DRAIN = 6, 8
"""Batches before and after those that are measured."""
_WAIT_S = 600.0
_CONSUMERS = (
    Consumer("filter", frozenset({"reward"}), "group"),
    Consumer("reference", frozenset({"tokens", "loss_mask", "keep"})),
    Consumer("advantages", frozenset({"reward", "reference", "keep"}), "group"),
    Consumer("actor", frozenset({"tokens", "loss_mask", "logprobs", "advantages", "batch"})),
    Consumer("critic", frozenset({"tokens", "loss_mask", "reference", "batch"})),
)


class AtOnce(InlineRuntime):
    """Lanes are the event loop."""

    async def compute(self, lane: str, function: Callable[..., T], *args: Any) -> T:
        return function(*args)


@dataclass(slots=True)
class House:
    """The controller's parts, and the roles' loops with nothing behind them."""

    flow: Flow
    journal: GroupJournal
    table: ExperienceTable
    runtime: AtOnce
    groups_per_batch: int
    random: random.Random
    marks: list[tuple[float, float]] = field(default_factory=list)
    """Processor and wall seconds at the end of each batch, less those of making groups."""
    making: tuple[float, float] = (0.0, 0.0)
    staleness: int = 0
    """The worst of a trained group."""
    critic_done: int = -1
    critic_leases: list[Lease] = field(default_factory=list)
    changed: Signal = field(default_factory=Signal)

    async def rollout(self) -> None:
        running: list[Admission] = []
        templates = [arrays(length) for length in range(*TOKENS)]
        while not self.flow.is_finished:
            while (admission := self.flow.admit(self.flow.batch)) is not None:
                running.append(admission)
            if not running:
                if not self.flow.is_finished:
                    await self.flow.changed.wait(self.runtime.clock, _WAIT_S, "the gate")
                continue
            place = self.random.randrange(len(running))
            running[place], running[-1] = running[-1], running[place]
            began = time.process_time(), time.perf_counter()
            group = make_group(running.pop(), templates, self.random)
            cpu, wall = self.making
            self.making = cpu + time.process_time() - began[0], wall + time.perf_counter() - began[1]
            self.flow.finish(group, await self.journal.write(group))
            await asyncio.sleep(0)

    async def stage(self, name: str, sampler: Sampler, done: Callable[[Lease], None]) -> None:
        while not self.flow.is_finished:
            lease = await self.table.lease(
                name, sampler, seconds=_WAIT_S, what=lambda: name, until=lambda: self.flow.is_finished
            )
            if lease is not None:
                self.table.hold(lease)
                done(lease)

    def keep(self, lease: Lease) -> None:
        self.table.ack(lease)
        self.flow.keep(lease.rows[0].group)

    def fill(self, column: str) -> Callable[[Lease], None]:
        def done(lease: Lease) -> None:
            ids = [row.row_id for row in lease.rows]
            self.table.write(ids, column, [0.0] * len(ids), lease)
            self.table.ack(lease)

        return done

    async def leases(self, loader: StreamingLoader, batch: int) -> list[Lease]:
        leases = []
        async for lease in loader.leases(batch):
            self.table.hold(lease)
            leases.append(lease)
        return leases

    async def critic(self, loader: StreamingLoader) -> None:
        while not self.flow.is_finished:
            batch = self.flow.batch
            self.critic_leases = await self.leases(loader, batch)
            self.critic_done = batch
            self.changed.notify()
            while self.flow.batch == batch and not self.flow.is_finished:
                await self.flow.changed.wait(self.runtime.clock, _WAIT_S, "the step")

    async def actor(self, loader: StreamingLoader, batches: int) -> None:
        for batch in range(batches):
            leases = await self.leases(loader, batch)
            await self.changed.wait_until(
                lambda batch=batch: self.critic_done == batch,  # type: ignore[misc]
                self.runtime.clock,
                _WAIT_S,
                lambda: "the critic",
            )
            rows = [row for lease in leases for row in lease.rows]
            assert len(rows) == self.groups_per_batch * ROWS
            self.staleness = max(self.staleness, *(batch - row.columns["group"].start_version for row in rows))
            self.table.ack(*leases)
            self.table.ack(*self.critic_leases)
            self.flow.step()
            self.marks.append((time.process_time() - self.making[0], time.perf_counter() - self.making[1]))

    async def run(self, batches: int) -> None:
        """Until so many are trained, while others go on as in the midst of a run."""

        def loader(consumer: str) -> StreamingLoader:
            return StreamingLoader(
                self.table, self.flow, consumer=consumer, max_tokens=MICRO_TOKENS, streaming=True, timeout_s=_WAIT_S
            )

        others = asyncio.gather(
            self.rollout(),
            self.stage("filter", whole_groups, self.keep),
            self.stage("reference", token_budget(MICRO_TOKENS, row_length), self.fill("reference")),
            self.stage("advantages", whole_groups, self.fill("advantages")),
            self.critic(loader("critic")),
        )
        actor = asyncio.ensure_future(self.actor(loader("actor"), batches))
        await asyncio.wait((others, actor), return_when=asyncio.FIRST_COMPLETED)
        if not actor.done():
            others.result()
        await actor
        others.cancel()
        await asyncio.gather(others, return_exceptions=True)


def arrays(length: int) -> dict[str, Any]:
    """Of a sample: rows share them."""
    return {
        "tokens": np.zeros(length, np.int32),
        "loss_mask": np.ones(length, np.bool_),
        "logprobs": np.zeros(length, np.float32),
        "versions": np.zeros(length, np.int32),
        "branches": np.zeros(length, np.int32),
    }


def make_group(admission: Admission, templates: Sequence[dict[str, Any]], chance: random.Random) -> Group:
    samples = tuple(
        Sample(
            group=admission.key,
            episode=episode,
            index=0,
            status=SampleStatus.COMPLETED,
            reward=1.0,
            **templates[int(chance.random() * len(templates))],
        )
        for episode in range(ROWS)
    )
    return Group(admission.key, admission.prompt.prompt_id, admission.start_version, admission.deadline, samples)


def measure(groups_per_batch: int, batches: int, folder: Path, seed: int = 0) -> dict[str, float]:
    """Of the batches after the first `WARM_UP`."""
    with tempfile.TemporaryDirectory(dir=folder) as path:
        store = RunStore.create(Path(path) / "run", config_yaml="", config_sha256="x", now=0.0)
        house = build(store, groups_per_batch, batches + WARM_UP + DRAIN, seed)
        asyncio.run(house.run(batches + WARM_UP))
        store.ledger.counts().check()
        store.close()
    assert len(house.marks) == batches + WARM_UP
    (cpu_before, wall_before), (cpu, wall) = house.marks[WARM_UP - 1], house.marks[-1]
    groups = batches * groups_per_batch
    return {
        "us_per_group": 1e6 * (cpu - cpu_before) / groups,
        "groups_per_s": groups / (cpu - cpu_before),
        "groups_per_wall_s": groups / (wall - wall_before),
        "worst_staleness": house.staleness,
    }


def build(store: RunStore, groups_per_batch: int, batches: int, seed: int) -> House:
    runtime = AtOnce()
    prompts = groups_per_batch * batches
    dataset = PromptDataset([Prompt(str(place), "", {}) for place in range(prompts)])
    table = ExperienceTable(
        _CONSUMERS,
        capacity=(AHEAD_BATCHES + MAX_STALENESS + 2) * groups_per_batch,
        capacity_bytes=1 << 40,
        group_bytes=1 << 10,
        lease_s=_WAIT_S,
        clock=runtime.clock,
    )
    schedule = Schedule(
        prompts_per_batch=groups_per_batch,
        max_staleness=MAX_STALENESS,
        total_batches=batches,
        on_deadline="wait",
        ahead=AHEAD_BATCHES * groups_per_batch,
    )
    source = PromptSource(dataset, PromptOrder(prompts, seed=0, shuffle=True), epochs=1, max_attempts=2)
    flow = Flow(schedule, table, source, store, max_drops_per_batch=groups_per_batch)
    return House(flow, GroupJournal(store.writer, runtime), table, runtime, groups_per_batch, random.Random(seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[128, 1024], help="groups of a batch")
    parser.add_argument("--groups", type=int, default=8192, help="that are measured")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    args = parser.parse_args()
    result: dict[str, Any] = {"rows": ROWS, "max_staleness": MAX_STALENESS, "ahead_batches": AHEAD_BATCHES}
    for run in range(args.runs):
        for batch in args.batch:
            found = measure(batch, max(1, args.groups // batch), args.folder, run)
            result.setdefault(str(batch), []).append(found)
            print(f"B = {batch}: " + ", ".join(f"{name} {value:.1f}" for name, value in found.items()), flush=True)
    medians = [statistics.median(found["us_per_group"] for found in result[str(batch)]) for batch in args.batch]
    result["largest_over_smallest"] = medians[-1] / medians[0]
    result["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    result["load"] = os.getloadavg()
    print({name: result[name] for name in ("largest_over_smallest", "peak_mib", "load")})
    save("pure_logic", result)


if __name__ == "__main__":
    main()
