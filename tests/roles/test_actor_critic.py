"""Actor and critic go over a batch together: neither has stepped alone, whatever comes between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from table_rows import header

from headrace.experience.columns import FinishedGroup
from headrace.experience.flow import TrainedBatch
from headrace.experience.header import GroupHeader
from headrace.experience.leases import Consumer, Lease, RowId
from headrace.experience.loader import StreamingLoader
from headrace.experience.sample import GroupKey
from headrace.experience.table import ExperienceTable
from headrace.models.packing import MicroBatch
from headrace.observe.waits import WaitMeter
from headrace.roles.actors.actor import ActorRole
from headrace.roles.actors.batch_stats import FreshRule, StalenessRule
from headrace.roles.actors.critic import CriticRole
from headrace.roles.actors.trained_step import TrainedStep
from headrace.roles.actors.whole_batch import WholeBatches
from headrace.roles.context import RoleContext
from headrace.roles.turns import NoTurns, Turns
from headrace.runtime.signal import Signal
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.runtime.workers import WorkerLost
from headrace.training.epochs import Epochs
from headrace.training.group import TrainerGroup
from headrace.training.outgoing_weights import OutgoingWeights
from headrace.training.protocol import StepReport
from headrace.training.rank import BEGAN, TrainerRank
from headrace.training.rank_task import Task
from headrace.training.rank_workers import RankHere
from headrace.weights.disk import DiskPublisher
from headrace.weights.in_process import MemoryPublisher
from headrace.weights.plane import Manifest, Snapshot, WeightError, WeightPublisher
from headrace.weights.version import Lineage, Version

LEASE_S, STALL_S, LONG_S = 10.0, 100.0, 25.0
"""A lease that nobody holds ends after the first; computing takes longer than that."""
KEY = GroupKey(0, 0, 0)
COLUMNS = ("logprobs", "advantages", "versions")
RULE = StalenessRule(bound=1, masks=False, allows_late=False)
REPORT = StepReport(0.0, 0.0, 0.0, False, 1.0, {}, {}, 2, 2, 0)
OF_ROWS = 2
"""Refs that are kept as long as the two rows are in the table: to the metadata of each."""


class Trainer:
    """Counts."""

    def __init__(self, *, tells: bool) -> None:
        """`tells`: the log-probs under the weights that the batch begins with, which are -1."""
        self.tells = tells
        self.accumulated = 0
        self.steps: list[int] = []
        """Of each step, the samples that it was made of."""

    def accumulate(self, micro: MicroBatch) -> dict[str, Any]:
        self.accumulated += micro.num_samples
        return {BEGAN: -torch.ones(micro.num_tokens)} if self.tells else {}

    def step(self) -> StepReport:
        self.steps.append(self.accumulated)
        self.accumulated = 0
        return REPORT

    def discard(self) -> None:
        self.accumulated = 0

    def tensors(self) -> list[Any]:
        return [("weight", torch.zeros(1))]


@dataclass
class Flow:
    """Batches of two rows, sealed."""

    batches: int = 1
    batch: int = 0
    is_finished: bool = False
    is_sealed: bool = True
    changed: Signal = field(default_factory=Signal)

    def rows_of_batch(self) -> int:
        return 2

    def describe(self) -> str:
        return "two rows"

    def step(self) -> TrainedBatch:
        self.batch += 1
        self.is_finished = self.batch == self.batches
        self.changed.notify()
        return TrainedBatch(self.batch - 1, 1, 0, {})


@dataclass
class House:
    runtime: VirtualRuntime
    table: ExperienceTable
    flow: Flow
    actor: ActorRole
    critic: CriticRole
    policy: Trainer
    values: Trainer
    groups: tuple[TrainerGroup, TrainerGroup]
    """The policy's and the critic's."""
    plane: MemoryPublisher
    events: list[str]
    done: list[TrainedStep]
    ids: list[RowId]
    tasks: list[asyncio.Task[None]]

    def write(self, column: str, rows: slice = slice(None)) -> None:
        ids = self.ids[rows]
        self.table.write(ids, column, [np.zeros(3, np.float32) for _ in ids])

    async def settle(self) -> None:
        await self.runtime.clock.sleep(0.1)

    async def stop(self) -> None:
        self.actor.stop()
        await self.settle()
        assert self.tasks[0].done()

    def held(self, consumer: str) -> list[Lease]:
        return [lease for lease in self.table._index._leases.values() if lease.consumer == consumer]


@asynccontextmanager
async def house(
    runtime: VirtualRuntime, epochs: Epochs | None = None, turns: Turns | None = None, warm_up: int = 0
) -> AsyncIterator[House]:
    """`epochs`: over whole batches; one step from micro-batches as they come, unless given. `warm_up`: first batches of
    the critic alone."""
    consumers = [
        Consumer("actor", frozenset({"tokens", "advantages", "batch"})),
        Consumer("critic.update", frozenset({"tokens", "values", "returns", "batch"})),
    ]
    table = ExperienceTable(consumers, capacity=4, lease_s=LEASE_S, clock=runtime.clock, refs=runtime.refs)
    flow, events, done = Flow(), list[str](), list[TrainedStep]()
    own: Any = flow
    context = RoleContext(
        runtime, own, table, WaitMeter(runtime.clock.now), lambda kind, data: events.append(kind), STALL_S
    )
    policy, values, plane = Trainer(tells=True), Trainer(tells=False), MemoryPublisher()

    def group(name: str, trainer: Any, columns: tuple[str, ...]) -> TrainerGroup:
        weights = OutgoingWeights(trainer, runtime, plane=plane)
        rank = TrainerRank(trainer, runtime, Task(columns, {}), weights=weights, device=torch.device("cpu"))
        return TrainerGroup(name, RankHere(rank, runtime, name))

    def loader(consumer: str) -> StreamingLoader:
        tokens = 3 if epochs is None else None
        return StreamingLoader(
            table, own, consumer=consumer, max_tokens=tokens, streaming=epochs is None, timeout_s=STALL_S
        )

    async def trained(*_: object) -> None:
        flow.changed.notify()
        await runtime.clock.sleep(0.01)

    async def after_step(step: TrainedStep) -> None:
        """Who records the batch reads its rows, which nobody else holds any more."""
        await runtime.clock.sleep(0.01)
        found = [len(table.refs.get(row.row.columns["metadata"])["tokens"]) for row in step.rows]
        assert found == [3, 3]
        began = [table.refs.get(row.logprobs)[BEGAN].tolist() for row in step.rows if row.logprobs is not None]
        assert began == ([] if step.warm_up else [[-1.0] * 3] * 2)
        done.append(step)

    lineage = Lineage(0, {0: 2**62})
    groups = group("trainer", policy, COLUMNS), group("critic", values, ("values", "returns"))
    critic = CriticRole(context, loader("critic.update"), groups[1], RULE, max_tokens=3, epochs=epochs)
    actor = ActorRole(
        context,
        loader("actor"),
        groups[0],
        Signal(),
        lineage,
        RULE,
        FreshRule(lineage),
        columns=COLUMNS,
        max_tokens_per_microbatch=3,
        whole=None if epochs is None else WholeBatches(epochs, recompute=False),
        critic=critic,
        warm_up_batches=warm_up,
        trained=trained,
        after_step=after_step,
        turns=turns or NoTurns(),
    )
    ids = put(table, KEY, 0)
    tasks = [runtime.spawn(actor.run(), "actor"), runtime.spawn(critic.run(), "critic")]
    made = House(runtime, table, flow, actor, critic, policy, values, groups, plane, events, done, ids, tasks)
    try:
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def put(table: ExperienceTable, key: GroupKey, batch: int) -> list[RowId]:
    """Two rows."""
    arrays = {
        "tokens": np.arange(3, dtype=np.int32),
        "kept_sets": None,
        "temperatures": None,
        "loss_mask": np.array([False, True, True]),
        "logprobs": np.zeros(3, np.float32),
        "versions": np.array([-1, 0, 0], np.int32),
        "branches": np.array([-1, 0, 0], np.int32),
        "reward": 1.0,
        "terms": {},
        "batch": batch,
    }
    table.reserve(key)
    headers = tuple(header(key, episode=episode) for episode in range(2))
    refs = tuple(table.refs.put({"tokens": arrays["tokens"]}) for _ in headers)
    rows = [(one, {**arrays, "metadata": ref}) for one, ref in zip(headers, refs, strict=True)]
    return table.put(key, rows, group=FinishedGroup(GroupHeader(key, "0", 0, 4, headers), refs))


def virtually(
    body: Callable[[House], Awaitable[None]],
    epochs: Epochs | None = None,
    turns: Turns | None = None,
    warm_up: int = 0,
) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        async with house(runtime, epochs, turns, warm_up) as made:
            await body(made)

    run_virtually(main)


def test_both_step_once_all_rows_have_gone_through_both() -> None:
    async def body(house: House) -> None:
        house.write("advantages")
        await house.settle()
        assert (house.policy.steps, house.values.steps) == ([], []), "the actor is through, the critic has no row"
        house.write("values")
        house.write("returns")
        await house.settle()
        assert (house.policy.steps, house.values.steps) == ([2], [2])
        assert len(house.done) == 1
        assert house.table.rows == 0

    virtually(body)


async def through_two_batches(house: House) -> None:
    house.flow.batches = 2
    for batch in range(2):
        house.ids = house.ids if batch == 0 else put(house.table, GroupKey(0, 1, 0), 1)
        for column in ("advantages", "values", "returns"):
            house.write(column)
        await house.settle()


def test_a_batch_is_gone_over_once_and_then_the_next() -> None:
    async def body(house: House) -> None:
        await through_two_batches(house)
        assert (house.policy.steps, house.values.steps) == ([2, 2], [2, 2])
        assert house.events == []

    virtually(body)


def test_of_a_batch_that_the_critic_alone_learns_from_no_token_counts_as_trained() -> None:
    async def body(house: House) -> None:
        await through_two_batches(house)
        assert (house.policy.steps, house.values.steps) == ([0, 2], [2, 2])
        first, second = house.done
        assert (first.stats.samples, first.stats.trained_samples, dict(first.stats.staleness)) == (2, 0, {})
        assert (second.stats.samples, second.stats.trained_samples) == (2, 2)
        assert sum(second.stats.staleness.values()) == second.stats.response_tokens

    virtually(body, warm_up=1)


def test_a_version_travels_while_the_next_batch_is_trained_on() -> None:
    async def body(house: House) -> None:
        sent: list[float] = []

        send = house.plane.send

        def slow(snapshot: Snapshot) -> Manifest:
            house.runtime.charge(5.0)
            sent.append(house.runtime.clock.now())
            return send(snapshot)

        house.plane.send = slow  # type: ignore[assignment, method-assign]
        await through_two_batches(house)
        assert house.policy.steps == [2, 2], "batch 1 is trained while version 1 is on its way"
        assert len(house.done) == 1, "version 2 is copied once version 1 has arrived"
        await house.runtime.clock.sleep(5.0)
        assert len(house.done) == 2
        assert not house.tasks[0].done(), "the last version is waited for"
        await house.runtime.clock.sleep(5.0)
        assert house.tasks[0].done()

    virtually(body)


def test_a_version_has_arrived_before_engines_that_share_the_devices_wake() -> None:
    """They take what can be received then, and serve nothing older."""

    class OneDevice(NoTurns):
        shares_devices = True

    async def body(house: House) -> None:
        send = house.plane.send

        def slow(snapshot: Snapshot) -> Manifest:
            house.runtime.charge(5.0)
            return send(snapshot)

        house.plane.send = slow  # type: ignore[assignment, method-assign]
        for column in ("advantages", "values", "returns"):
            house.write(column)
        await house.settle()
        assert (house.policy.steps, house.done) == ([2], [])
        await house.runtime.clock.sleep(5.0)
        assert len(house.done) == 1

    virtually(body, turns=OneDevice())


@pytest.mark.parametrize("late", ["critic", "actor"])
def test_a_signal_before_both_are_through_leaves_both_as_they_were(late: str) -> None:
    async def body(house: House) -> None:
        house.write("advantages", slice(0, 1 if late == "actor" else 2))
        house.write("values")
        house.write("returns", slice(0, 1 if late == "critic" else 2))
        await house.settle()
        await house.stop()
        assert (house.policy.steps, house.values.steps, house.done) == ([], [], [])
        assert house.policy.accumulated == 0

    virtually(body)


def test_a_signal_while_they_step_waits_for_both() -> None:
    async def body(house: House) -> None:
        steps = house.values.step

        def slow() -> StepReport:
            house.runtime.charge(5.0)
            house.actor.stop()
            return steps()

        house.values.step = slow  # type: ignore[method-assign]
        for column in ("advantages", "values", "returns"):
            house.write(column)
        await house.runtime.clock.sleep(6.0)
        assert (house.policy.steps, house.values.steps, len(house.done)) == ([2], [2], 1)

    virtually(body)


def test_an_actor_that_lost_a_row_begins_the_batch_again() -> None:
    async def body(house: House) -> None:
        house.write("values")
        house.write("returns")
        house.write("advantages", slice(0, 1))
        await house.settle()
        house.table.give_back(house.held("actor")[0])
        house.write("advantages", slice(1, 2))
        await house.settle()
        assert house.events == ["restarted_batch"]
        assert (house.policy.steps, house.values.steps) == ([2], [2])

    virtually(body)


def test_a_critic_that_lost_a_row_begins_the_batch_again_before_anybody_steps() -> None:
    async def body(house: House) -> None:
        house.write("values")
        house.write("returns")
        await house.settle()
        assert house.values.accumulated == 2
        house.table.give_back(house.held("critic.update")[0])
        house.write("advantages")
        await house.settle()
        assert house.events == ["restarted_batch"]
        assert (house.policy.steps, house.values.steps) == ([2], [2])

    virtually(body)


@pytest.mark.parametrize("who", ["policy", "values"])
def test_leases_are_held_while_a_pass_takes_longer_than_they_last(who: str) -> None:
    async def body(house: House) -> None:
        trainer: Trainer = getattr(house, who)
        accumulate = trainer.accumulate

        def slow(micro: MicroBatch) -> dict[str, Any]:
            house.runtime.charge(LONG_S)
            return accumulate(micro)

        trainer.accumulate = slow  # type: ignore[method-assign]
        for column in ("advantages", "values", "returns"):
            house.write(column)
        await house.runtime.clock.sleep(STALL_S)
        assert house.events == []
        assert (house.policy.steps, house.values.steps) == ([2], [2])

    virtually(body)


@pytest.mark.parametrize("who", ["actor", "critic.update"])
def test_who_lost_a_row_gives_the_others_back_and_has_all_of_them_again(who: str) -> None:
    """Rows come one at a time, each in a lease of its own; the second is lost, and the first is held."""

    async def body(house: House) -> None:
        own, others = ["advantages"], ["values", "returns"]
        if who == "critic.update":
            own, others = others, own
        for row in range(2):
            for column in own:
                house.write(column, slice(row, row + 1))
            await house.settle()
        first, second = house.held(who)
        assert [len(lease.rows) for lease in (first, second)] == [1, 1]
        house.table.give_back(second)
        for column in others:
            house.write(column)
        await house.settle()
        assert house.events == ["restarted_batch"]
        assert (house.policy.steps, house.values.steps) == ([2], [2])

    virtually(body)


def test_an_actor_that_is_told_to_stop_keeps_no_row() -> None:
    async def body(house: House) -> None:
        lease = house.table.lease

        async def stopped(*args: Any, **options: Any) -> Any:
            found = await lease(*args, **options)
            house.actor.stop()
            return found

        house.table.lease = stopped  # type: ignore[method-assign]
        house.write("advantages")
        await house.settle()
        assert house.held("actor") == []
        assert house.policy.accumulated == 0

    virtually(body)


@pytest.mark.parametrize("epochs", [None, Epochs(2)])
def test_after_a_batch_neither_trainer_has_a_row_of_it_and_nobody_a_ref(epochs: Epochs | None) -> None:
    """What the batch began with is there for the record (`after_step` reads it), and no longer."""

    async def body(house: House) -> None:
        for column in ("advantages", "values", "returns"):
            house.write(column)
        await house.settle()
        assert len(house.done) == 1
        assert house.runtime.kept == 0
        assert [await group.let_go() for group in house.groups] == [[], []]

    virtually(body, epochs)


def test_a_batch_that_is_begun_again_leaves_nothing_of_what_it_first_began_with() -> None:
    async def body(house: House) -> None:
        house.write("advantages", slice(0, 1))
        await house.settle()
        assert house.runtime.kept == OF_ROWS + 1
        house.table.give_back(house.held("actor")[0])
        for column in ("values", "returns"):
            house.write(column)
        house.write("advantages", slice(1, 2))
        await house.settle()
        assert house.events == ["restarted_batch"]
        assert len(house.done) == 1
        assert house.runtime.kept == 0

    virtually(body)


def test_a_batch_that_is_given_up_leaves_nothing_of_what_it_began_with() -> None:
    async def body(house: House) -> None:
        house.write("advantages")
        await house.settle()
        assert house.runtime.kept == OF_ROWS + 2
        await house.stop()
        assert house.runtime.kept == OF_ROWS

    virtually(body)


def test_an_actor_that_ends_while_it_waits_for_the_critic_leaves_nothing_of_what_the_batch_began_with() -> None:
    async def body(house: House) -> None:
        house.write("advantages")
        await house.settle()
        assert house.runtime.kept == OF_ROWS + 2
        house.tasks[0].cancel()
        await house.settle()
        assert house.tasks[0].cancelled()
        assert house.runtime.kept == OF_ROWS

    virtually(body)


@pytest.mark.parametrize("epochs", [None, Epochs(2)])
def test_a_critic_that_fails_after_the_actors_steps_leaves_nothing_of_what_the_batch_began_with(
    epochs: Epochs | None,
) -> None:
    async def body(house: House) -> None:
        def fails() -> StepReport:
            raise RuntimeError("the critic is out of memory")

        house.values.step = fails  # type: ignore[method-assign]
        for column in ("advantages", "values", "returns"):
            house.write(column)
        await house.settle()
        with pytest.raises(RuntimeError, match="the critic is out of memory"):
            house.tasks[0].result()
        assert house.policy.steps[:1] == [2], "the actor has stepped"
        assert house.runtime.kept == OF_ROWS

    virtually(body, epochs)


def test_what_the_run_goes_back_to_has_arrived_when_the_actor_begins_again() -> None:
    async def body(house: House) -> None:
        await house.stop()
        await house.actor.begin_again()
        assert house.plane.receiver().latest() == Version(0, 0)

    virtually(body)


def test_what_the_run_goes_back_to_and_cannot_be_sent_is_raised_before_the_actor_begins_again() -> None:
    async def body(house: House) -> None:
        def full(snapshot: object) -> None:
            raise WeightError("the disk is full")

        house.plane.send = full  # type: ignore[assignment, method-assign]
        await house.stop()
        with pytest.raises(WeightError, match="the disk is full"):
            await house.actor.begin_again()

    virtually(body)


def test_a_version_that_has_left_does_not_leave_again_where_a_loss_behind_it_was_healed() -> None:
    """As of a critic's rank while a checkpoint takes its state: the trainer has published the version already."""

    async def body(house: House) -> None:
        after_step = house.actor._after_step

        async def lost(step: TrainedStep) -> None:
            house.actor._after_step = after_step
            raise WorkerLost(0, "it ended", worker="critic/0")

        house.actor._after_step = lost
        for column in ("advantages", "values", "returns"):
            house.write(column)
        await house.settle()
        with pytest.raises(WorkerLost):
            house.tasks[0].result()
        assert (house.actor.has_stepped, house.done) == (True, [])
        await house.actor.go_on()
        house.tasks[0] = house.runtime.spawn(house.actor.run(), "actor")
        await house.settle()
        house.tasks[0].result()
        assert (house.policy.steps, len(house.done), house.actor.has_stepped) == ([2], 1, False)
        assert house.plane.receiver().latest() == Version(0, 1)

    virtually(body)


def on_disk(folder: Path) -> WeightPublisher:
    return DiskPublisher(folder / "weights")


def in_memory(folder: Path) -> WeightPublisher:
    return MemoryPublisher()


@pytest.mark.parametrize("plane", [on_disk, in_memory])
def test_a_version_is_there_once_a_first_rank_that_was_made_anew_is_healed(
    tmp_path: Path, plane: Callable[[Path], WeightPublisher]
) -> None:
    """In memory nothing is left of what the one before had published; a folder outlasts it, and takes no version
    twice."""

    async def body(house: House) -> None:
        rank: Any = house.groups[0]._ranks
        rank._rank._out._plane = plane(tmp_path)
        await house.stop()
        await house.actor.begin_again()
        for _ in range(2):
            rank._rank._out._plane = plane(tmp_path)
            await house.actor.go_on()
            assert rank._rank._out._plane.receiver().latest() == Version(0, 0)

    virtually(body)
