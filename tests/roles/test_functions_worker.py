"""What roles see of a functions worker that dies: it comes back, and what it kept is computed again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
from role_house import LONG_S, STALL_S, Flow
from table_rows import header

from headrace.algorithms.kl_controllers import KLCoefficient
from headrace.algorithms.pieces import PieceError
from headrace.config.algorithm import KLConfig
from headrace.experience.columns import SAMPLE_COLUMNS, FinishedGroup, read
from headrace.experience.header import GroupHeader
from headrace.experience.leases import Consumer, Lease
from headrace.experience.records.codec import encode_group
from headrace.experience.records.restored_refs import RestoredRefs
from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus
from headrace.experience.table import ExperienceTable
from headrace.observe.waits import WaitMeter
from headrace.roles.columns.advantages import AdvantageColumns
from headrace.roles.columns.filling import ColumnRole
from headrace.roles.columns.function_stage import FunctionColumns
from headrace.roles.columns.functions import Advantages, Columns, FunctionsLost
from headrace.roles.columns.functions_worker import InWorker
from headrace.roles.context import RoleContext
from headrace.roles.workers.functions import FunctionRow, FunctionsWorker
from headrace.runtime.placing import NoRoom
from headrace.runtime.refs import Ref, Refs
from headrace.runtime.supervision import Often
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Host, Placement, WorkerLost, Workers
from headrace.store import JournalOffset

KEY = GroupKey(0, 0, 0)
READS = {"stage": ("tokens", "group"), "advantages": ("x",)}


@dataclass
class Room:
    runtime: VirtualRuntime
    table: ExperienceTable
    context: RoleContext
    workers: Workers[Any]
    functions: InWorker
    events: list[str] = field(default_factory=list)

    async def kill(self) -> None:
        await self.workers.kill(0, "a test ended it")

    async def trained(self) -> Lease:
        lease = await self.table.lease("actor", list, seconds=STALL_S, what=str)
        assert lease is not None
        return lease

    def columns_of(self, lease: Lease) -> list[dict[str, Any]]:
        return [read(self.table.refs, row, ("x", "advantages")) for row in lease.rows]


class Play:
    """Calls that take long; `faults` are raised, one a call."""

    def __init__(self, *faults: Exception, samples: Group | None = None, often: Often | None = None) -> None:
        """`samples`: of the group; a rollout worker kept them, and they are in the journal. `often`: see `InWorker`."""
        self.often = often
        self.faults = list(faults)
        self.samples = samples
        self.called: list[str] = []
        self.lives = 0

    def worker(self, runtime: VirtualRuntime) -> type[Any]:
        play = self

        class Worker:
            kind: ClassVar[str] = "functions"
            types: ClassVar[WireTypes] = FunctionsWorker.types

            def __init__(self, spec: object, host: Host) -> None:
                play.lives += 1
                self._refs = host.refs

            def _begin(self, what: str) -> None:
                play.called.append(what)
                runtime.charge(LONG_S)
                if play.faults:
                    raise play.faults.pop(0)

            def stage(self, name: str, rows: Sequence[FunctionRow], groups: Sequence[FinishedGroup]) -> Columns:
                self._begin(name)
                assert [one.header.key for one in groups] == [KEY]
                for ref in groups[0].refs:
                    self._refs.get(ref, ("metadata",))
                for row in rows:
                    read(self._refs, row, ("tokens",))
                return {"x": [self._refs.put({"x": np.full(3, play.lives, np.float32)}) for _ in rows]}

            def advantages(self, rows: Sequence[FunctionRow], beta: float, moves: bool) -> Advantages:
                self._begin("advantages")
                found = [self._refs.get(row.columns["x"])["x"] * 2 for row in rows]
                return Advantages({"advantages": [self._refs.put({"advantages": one}) for one in found]}, beta + 1)

            def coefficient(self, beta: float, kl: float, samples: int) -> float:
                self._begin("coefficient")
                return beta + kl / samples

        return Worker


def try_worker(play: Play, body: Callable[[Room], Awaitable[None]]) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        consumers = [
            Consumer("stage", frozenset({"tokens"}), "group", frozenset({"x"})),
            Consumer("advantages", frozenset({"x"}), "group", frozenset({"advantages"})),
            Consumer("actor", frozenset({"x", "advantages"})),
        ]
        refs: Refs = runtime.refs
        lost = ()
        if play.samples is not None:
            encoded = encode_group(play.samples)
            refs = restored = RestoredRefs(refs, lambda place: encoded)
            lost = tuple(Ref("rollout/0", number, SAMPLE_COLUMNS) for number in range(2))
            restored.note(lost, JournalOffset(0, 0, 0))
        table = ExperienceTable(consumers, capacity=4, lease_s=10.0, clock=runtime.clock, refs=refs)
        events: list[str] = []
        flow: Any = Flow()
        context = RoleContext(
            runtime, flow, table, WaitMeter(runtime.clock.now), lambda kind, data: events.append(kind), STALL_S
        )
        workers = await runtime.start(play.worker(runtime), [None], Placement())
        functions = InWorker(workers, context, READS, name="advantages", often=play.often)
        headers = tuple(header(KEY, episode=episode) for episode in range(2))
        finished = FinishedGroup(GroupHeader(KEY, "0", 0, 4, headers), lost)
        table.reserve(KEY)
        tokens = lost or (np.arange(3),) * 2
        rows = [(one, {"tokens": where, "group": KEY}) for one, where in zip(headers, tokens, strict=True)]
        table.put(KEY, rows, group=finished)
        estimator: Any = type("ByToken", (), {"is_of_episodes": False})
        roles = [
            ColumnRole(
                context,
                FunctionColumns(context, functions, name="stage", reads=("tokens", "group"), unit="group"),
            ),
            ColumnRole(context, AdvantageColumns(context, estimator, functions, KLCoefficient(KLConfig()))),
            functions,
        ]
        running = [runtime.spawn(role.run(), "role") for role in roles]  # type: ignore[attr-defined]
        try:
            await body(Room(runtime, table, context, workers, functions, events))
            for task in running:
                if task.done():
                    task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    run_virtually(main)


def test_what_was_lost_in_the_midst_of_a_call_is_computed_by_the_next_life() -> None:
    play = Play()

    async def body(room: Room) -> None:
        await room.runtime.clock.sleep(LONG_S / 2)
        await room.kill()
        lease = await room.trained()
        assert play.called == ["stage", "stage", "advantages"]
        assert [one["x"].tolist() for one in room.columns_of(lease)] == [[2.0] * 3] * 2
        room.table.ack(lease)
        assert room.table.rows == 0
        assert room.events == ["worker_lost"]

    try_worker(play, body)


def test_columns_that_were_written_are_computed_again_for_who_still_reads_them() -> None:
    play = Play()

    async def body(room: Room) -> None:
        first = await room.trained()
        room.table.hold(first)
        await room.kill()
        lease = await room.trained()
        assert play.called == ["stage", "advantages"] * 2
        assert [one["advantages"].tolist() for one in room.columns_of(lease)] == [[4.0] * 3] * 2
        room.table.settle(lease)
        await room.kill()
        room.table.ack(lease)
        assert room.table.rows == 0

    try_worker(play, body)


def test_a_worker_that_dies_in_every_call_ends_the_run() -> None:
    play = Play()

    async def body(room: Room) -> None:
        lives = 0
        while True:
            await room.runtime.clock.sleep(LONG_S / 2)
            if play.lives > lives and len(play.called) > lives:
                lives = play.lives
                await room.kill()

    with pytest.raises(FunctionsLost, match=r"was lost 8 times in a row, the last time so: a test ended it; mend that"):
        try_worker(play, lambda room: _until_given_up(room, body))
    assert play.lives == 8


def test_a_worker_that_dies_too_often_within_a_time_ends_the_run_though_it_answers_between() -> None:
    play = Play(often=Often(3, 600.0))

    async def body(room: Room) -> None:
        for pause_s in (700.0, 100.0, 100.0, 0.0):
            await room.functions.coefficient(1.0, 1.0, 1)
            await room.kill()
            await room.runtime.clock.sleep(pause_s)

    with pytest.raises(FunctionsLost, match=r"was lost 3 times within 600 s \(runtime\.restarts\.workers\), the last"):
        try_worker(play, lambda room: _until_given_up(room, body))
    assert play.lives == 4


def test_where_no_node_has_room_in_time_the_run_ends() -> None:
    tried = []

    async def body(room: Room) -> None:
        async def restart(rank: int) -> None:
            tried.append(rank)
            raise WorkerLost(rank, "it has waited 300 s for room", worker="functions/0") from NoRoom("1 GPU is short")

        room.workers.restart = restart  # type: ignore[method-assign]
        await room.kill()

    with pytest.raises(FunctionsLost, match=r"has no room any more: .*it has waited 300 s for room; mend that"):
        try_worker(Play(), lambda room: _until_given_up(room, body))
    assert tried == [0]


async def _until_given_up(room: Room, body: Callable[[Room], Awaitable[None]]) -> None:
    killing = room.runtime.spawn(body(room), "killer")  # type: ignore[arg-type]
    try:
        await room.functions._until(lambda: room.functions._given_up is not None)
        with pytest.raises(FunctionsLost):
            await room.functions.coefficient(1.0, 1.0, 1)
    finally:
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)


def test_the_coefficient_is_asked_again() -> None:
    play = Play()

    async def body(room: Room) -> None:
        await room.trained()
        asking = room.runtime.spawn(room.functions.coefficient(1.0, 6.0, 3), "the coefficient")
        await room.runtime.clock.sleep(LONG_S / 2)
        await room.kill()
        assert await asking == 3.0
        assert play.called.count("coefficient") == 2

    try_worker(play, body)


def test_an_error_of_the_users_function_is_the_runs_and_ends_no_worker() -> None:
    play = Play(PieceError("stage mine raised KeyError: 'x' (at own.py:3)"))

    async def body(room: Room) -> None:
        await room.runtime.clock.sleep(2 * LONG_S)

    with pytest.raises(PieceError, match=r"^stage mine raised KeyError: 'x' \(at own.py:3\)$"):
        try_worker(play, body)
    assert play.lives == 1


def test_samples_that_were_lost_with_a_rollout_worker_are_read_from_the_journal() -> None:
    def sample(episode: int) -> Sample:
        return Sample(
            group=KEY,
            episode=episode,
            index=0,
            tokens=np.arange(3, dtype=np.int32),
            loss_mask=np.ones(3, np.bool_),
            logprobs=np.zeros(3, np.float32),
            versions=np.zeros(3, np.int32),
            branches=np.zeros(3, np.int32),
            status=SampleStatus.COMPLETED,
            reward=1.0,
        )

    play = Play(samples=Group(KEY, "0", 0, 4, (sample(0), sample(1))))

    async def body(room: Room) -> None:
        room.table.ack(await room.trained())
        assert play.called == ["stage", "stage", "advantages"], "it is asked again, and no life is lost by it"
        assert play.lives == 1

    try_worker(play, body)
