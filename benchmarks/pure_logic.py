"""What the controller itself spends on a group: schedule, flow, ledger, table and loaders, through admit -> trained.

python -m benchmarks.pure_logic [--batch 128 1024] [--groups 16384] [--runs 3] [--folder /dev/shm]

Groups of 16 rows of some 8,192 tokens at max_staleness 4, five batches ahead, as rollout workers hand them over:
header, refs and receipt; so the journal, which is the worker's, is not in it, and no token is. They end in a random
order; a filter, a reference and the advantages lease their rows, then an actor and a critic lease the batch in
micro-batches of about eight rows. Nothing is computed and no clock is waited for. The store is a real one in
`--folder`, which is best held in memory. What is told is the processor seconds of all threads over a whole run, by its
groups; making the headers counts. Runs are of equally many groups, so that their ledgers are equally large.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.machine import save
from headrace.experience.columns import SAMPLE_COLUMNS, FinishedGroup
from headrace.experience.flow import Admission, Flow
from headrace.experience.header import GroupHeader, SampleHeader, Span
from headrace.experience.index import Sampler
from headrace.experience.leases import Consumer
from headrace.experience.loader import StreamingLoader, row_length
from headrace.experience.prompts.dataset import Prompt, PromptDataset, PromptOrder, PromptSource
from headrace.experience.sample import SampleStatus
from headrace.experience.samplers import token_budget, whole_groups
from headrace.experience.schedule import Schedule
from headrace.experience.table import ExperienceTable, Lease
from headrace.runtime.collection import rare_collections
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.refs import Ref
from headrace.runtime.signal import Signal
from headrace.store import JournalOffset, Receipt, RunStore
from headrace.store.ledger import Ledger

T = TypeVar("T")

ROWS, MAX_STALENESS, AHEAD_BATCHES = 16, 4, 5
TOKENS = (6_144, 10_241)
"""Of a row: from, below. Rows differ, so that micro-batches do."""
PROMPT_TOKENS = 256
MICRO_TOKENS = 65_536
WRITER = 1
"""The rollout worker's journal."""
_BYTES_PER_TOKEN = 17
"""Of tokens, mask, log-probs, versions and branches."""
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
    ledger: Ledger
    table: ExperienceTable
    runtime: AtOnce
    groups_per_batch: int
    random: random.Random
    trained: int = 0
    staleness: int = 0
    """The worst of a trained group."""
    critic_done: int = -1
    critic_leases: list[Lease] = field(default_factory=list)
    changed: Signal = field(default_factory=Signal)

    async def rollout(self) -> None:
        running: list[Admission] = []
        numbers = count()
        while not self.flow.is_finished:
            while (admission := self.flow.admit(self.flow.batch)) is not None:
                self.ledger.assign(admission.key, issue=admission.issue, writer=WRITER)
                running.append(admission)
            if not running:
                if not self.flow.is_finished:
                    await self.flow.changed.wait(self.runtime.clock, _WAIT_S, "the gate")
                continue
            place = self.random.randrange(len(running))
            running[place], running[-1] = running[-1], running[place]
            self.flow.finish(*finished(running.pop(), numbers, self.random))
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

    async def actor(self, loader: StreamingLoader) -> None:
        while not self.flow.is_finished:
            batch = self.flow.batch
            leases = await self.leases(loader, batch)
            await self.changed.wait_until(
                lambda batch=batch: self.critic_done == batch,  # type: ignore[misc]
                self.runtime.clock,
                _WAIT_S,
                lambda: "the critic",
            )
            rows = [row for lease in leases for row in lease.rows]
            assert len(rows) == self.groups_per_batch * ROWS
            self.staleness = max(self.staleness, *(batch - row.header.spans[0].number for row in rows))
            self.table.ack(*leases)
            self.table.ack(*self.critic_leases)
            self.flow.step()
            self.trained += len(rows) // ROWS

    async def run(self) -> None:
        def loader(consumer: str) -> StreamingLoader:
            return StreamingLoader(
                self.table, self.flow, consumer=consumer, max_tokens=MICRO_TOKENS, streaming=True, timeout_s=_WAIT_S
            )

        await asyncio.gather(
            self.rollout(),
            self.stage("filter", whole_groups, self.keep),
            self.stage("reference", token_budget(MICRO_TOKENS, row_length), self.fill("reference")),
            self.stage("advantages", whole_groups, self.fill("advantages")),
            self.critic(loader("critic")),
            self.actor(loader("actor")),
        )


def finished(admission: Admission, numbers: Iterator[int], chance: random.Random) -> tuple[FinishedGroup, Receipt]:
    """What a rollout worker tells of a group."""
    key, prompt_id = admission.key, admission.prompt.prompt_id

    def sample(episode: int) -> SampleHeader:
        length = chance.randrange(*TOKENS)
        return SampleHeader(
            key=key,
            prompt_id=prompt_id,
            episode=episode,
            index=0,
            length=length,
            status=SampleStatus.COMPLETED,
            spans=(Span(0, admission.start_version, PROMPT_TOKENS, length),),
            issue=admission.issue,
            reward=1.0,
            nbytes=_BYTES_PER_TOKEN * length,
        )

    header = GroupHeader(
        key,
        prompt_id,
        admission.start_version,
        admission.deadline,
        tuple(sample(episode) for episode in range(ROWS)),
        admission.issue,
    )
    refs = tuple(Ref("rollout/0", number, SAMPLE_COLUMNS) for number in islice(numbers, ROWS))
    place = JournalOffset(0, refs[0].number, 1, WRITER)
    return FinishedGroup(header, refs), Receipt(key, admission.issue, place)


def measure(groups_per_batch: int, batches: int, folder: Path, seed: int = 0) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=folder) as path:
        store = RunStore.create(Path(path) / "run", config_yaml="", config_sha256="x", now=0.0)
        house = build(store, groups_per_batch, batches, seed)
        cpu, wall = time.process_time(), time.perf_counter()
        with rare_collections():  # as every run has them
            asyncio.run(house.run())
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        store.ledger.counts().check()
        store.close()
    assert house.trained == batches * groups_per_batch
    return {
        "us_per_group": 1e6 * cpu / house.trained,
        "groups_per_s": house.trained / cpu,
        "groups_per_wall_s": house.trained / wall,
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
        group_bytes=ROWS * TOKENS[1] * _BYTES_PER_TOKEN,
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
    return House(flow, store.ledger, table, runtime, groups_per_batch, random.Random(seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[128, 1024], help="groups of a batch")
    parser.add_argument("--groups", type=int, default=16_384, help="of a run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    args = parser.parse_args()
    result: dict[str, Any] = {
        "rows": ROWS,
        "tokens_of_a_row": TOKENS,
        "max_staleness": MAX_STALENESS,
        "ahead_batches": AHEAD_BATCHES,
    }
    for run in range(args.runs):
        for batch in args.batch:
            found = measure(batch, args.groups // batch, args.folder, run)
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
