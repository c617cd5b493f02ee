"""What a rank raises reaches who asked as it was raised, and the chain of errors has an end."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from table_rows import row

from headrace.algorithms.pieces import PieceError
from headrace.config import ConfigError
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Host, Placement, WorkerError, WorkerLost, Workers
from headrace.training.group import TrainerGroup
from headrace.training.layouts.ranks import Layout
from headrace.training.outgoing_weights import OutgoingWeights
from headrace.training.pieces import Piece
from headrace.training.protocol import CheckpointError, StepReport, Written
from headrace.training.rank import TRAINER_TYPES, TrainerRank
from headrace.training.rank_task import Task
from headrace.training.rank_workers import BESIDE_ITS_LANE, RankWorkers
from headrace.training.replicas import Meeting
from headrace.training.rows.packed_rows import RowToTrain, to_train
from headrace.weights.shm import ShmPublisher
from headrace.weights.transport import Transport, open_transport
from headrace.weights.version import Version


class Saving:
    kind: ClassVar[str] = "saving"
    types: ClassVar[WireTypes] = WireTypes({"written": Written})

    def __init__(self, spec: int, host: object) -> None:
        self._count = spec

    def take_state(self, copies: bool) -> None:
        pass

    async def write_state(self, path: str) -> Written:
        (Path(path) / "saved").touch()
        return Written(self._count, 5)


async def saved(group: TrainerGroup, path: Path) -> None:
    await group.take_state(copies=True)
    await group.write_state(path)


def test_parts_that_do_not_add_up_to_the_model_are_no_checkpoint(tmp_path: Path) -> None:
    async def main() -> None:
        runtime = InlineRuntime()
        try:
            for counts in ([3, 2], [3, 1]):
                workers = await runtime.start(Saving, counts, Placement())
                group = TrainerGroup("trainer", RankWorkers(workers, runtime.clock, 1.0, Layout(dp=2, zero=2)))
                if sum(counts) == 5:
                    await saved(group, tmp_path)
                    continue
                with pytest.raises(CheckpointError, match=r"ranks wrote 4 bytes of weights into .*, which has 5"):
                    await saved(group, tmp_path)
        finally:
            await runtime.close()

    asyncio.run(main())


def test_the_first_that_is_left_saves_and_where_none_is_the_loss_is_raised(tmp_path: Path) -> None:
    async def main() -> None:
        runtime = InlineRuntime()
        try:
            workers = await runtime.start(Saving, [5, 5], Placement())
            group = TrainerGroup("trainer", RankWorkers(workers, runtime.clock, 1.0, Layout(dp=2)))
            await workers.kill(0, "on purpose")
            await saved(group, tmp_path)
            (tmp_path / "saved").unlink()
            await workers.kill(1, "on purpose, too")
            with pytest.raises(WorkerLost, match="saving/0 is lost: on purpose"):
                await saved(group, tmp_path)
            assert not (tmp_path / "saved").exists()
        finally:
            await runtime.close()

    asyncio.run(main())


class Raising:
    kind: ClassVar[str] = "raising"
    types: ClassVar[WireTypes] = WireTypes({})

    def __init__(self, spec: object, host: object) -> None:
        pass

    def step(self) -> None:
        try:
            raise AttributeError("of the user's own")
        except AttributeError as error:
            raise PieceError("algorithm.loss raised AttributeError") from error


def test_an_error_of_a_rank_in_this_process_is_raised_as_it_was() -> None:
    async def main() -> None:
        runtime = InlineRuntime()
        try:
            ranks = RankWorkers(await runtime.start(Raising, [None], Placement()), runtime.clock, 1.0)
            with pytest.raises(PieceError, match=r"algorithm\.loss raised") as raised:
                await ranks.call("step", what="a step")
        finally:
            await runtime.close()
        seen: list[BaseException] = []
        error: Any = raised.value
        while error is not None and len(seen) < 10:
            seen.append(error)
            error = error.__cause__ or error.__context__
        assert [type(each) for each in seen] == [PieceError, AttributeError]

    asyncio.run(main())


class Half:
    """What `TrainerRank` asks of a trainer that has some rows of a matrix, [4, 2] float32."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.weights = torch.arange(8.0).view(4, 2)[2 * rank : 2 * rank + 2].clone()

    peers = beside = None

    def join(self, *meeting: object) -> None:
        pass

    def outlines(self) -> dict[str, torch.Tensor]:
        return {"w": torch.empty(4, 2, dtype=torch.bfloat16, device="meta")}

    def pieces(self) -> Iterator[tuple[str, Piece]]:
        yield "w", Piece(self.weights, (4, 2), (2 * self.rank, 0))


class Halving(TrainerRank):
    kind: ClassVar[str] = "trainer"
    types: ClassVar[WireTypes] = TRAINER_TYPES

    def __init__(self, told: tuple[Transport, str], host: Host) -> None:
        self.half = Half(host.rank)
        transport, folder = told
        plane, aside = open_transport(transport, Path(folder) / "plane"), ShmPublisher(Path(folder) / "aside")
        task, device = Task((), {}), torch.device("cpu")
        trainer: Any = self.half
        weights = OutgoingWeights(trainer, host, plane=plane, aside=lambda: aside, by_parts=True)
        super().__init__(trainer, host, task, weights=weights, device=device)

    def train(self) -> None:
        self.half.weights += 10


@pytest.mark.parametrize("transport", ["shm", "disk"])
def test_ranks_publish_what_each_has_for_all_and_for_one_receiver_alone(tmp_path: Path, transport: Transport) -> None:
    async def main() -> None:
        runtime = InlineRuntime()
        for name in ("plane", "aside"):
            (tmp_path / name).mkdir()
        try:
            workers = await runtime.start(Halving, [(transport, str(tmp_path))] * 2, Placement())
            ranks = RankWorkers(workers, runtime.clock, 1.0, Layout(dp=2, zero=2))
            group = await TrainerGroup.of("trainer", ranks)
            await ranks.each("come_together", {rank: (rank, ("", 0), 1.0, True) for rank in (0, 1)}, what="a group")
            whole = torch.arange(8.0).view(4, 2)
            for number in (1, 2):
                await group.snapshot(Version(0, number))
                assert group.receiver().latest() == (None if number == 1 else Version(0, 1)), "not before all is there"
                await ranks.each("train", {0: (), 1: ()}, what="a step")
                aside = await group.show_aside(Version(0, number))
                assert aside.receive()[1]["w"].float().equal(whole + 10 * number)
                await group.end_aside()
                assert (await group.send()).size == 16
                _, tensors = group.receiver().receive()
                assert tensors["w"].dtype == torch.bfloat16
                assert tensors["w"].float().equal(whole + 10 * (number - 1))
        finally:
            await runtime.close()

    asyncio.run(main())


class Counting:
    kind: ClassVar[str] = "counting"
    types: ClassVar[WireTypes] = WireTypes({})

    def __init__(self, spec: int, host: object) -> None:
        self._steps = spec

    def steps(self) -> int:
        return self._steps

    def reaches(self) -> list[int]:
        return [self._steps]


IN_TWO = Layout(dp=4, replicas=2, zero=2)
"""Ranks 0 and 1 have a replica together, 2 and 3 the other."""


def with_ranks(steps: list[int], use: Callable[[Workers[Any], RankWorkers], Awaitable[None]]) -> None:
    """`steps` that each says to have made."""

    async def main() -> None:
        runtime = InlineRuntime()
        try:
            workers = await runtime.start(Counting, steps, Placement())
            await use(workers, RankWorkers(workers, runtime.clock, 1.0, IN_TWO))
        finally:
            await runtime.close()

    asyncio.run(main())


def test_a_rank_takes_its_replica_along_and_is_the_one_that_is_named() -> None:
    async def use(workers: Workers[Any], ranks: RankWorkers) -> None:
        every: dict[int, tuple[()]] = dict.fromkeys(range(4), ())
        assert await ranks.each("steps", every, what="steps") == {0: 5, 1: 5, 2: 5, 3: 5}
        await workers.kill(3, "on purpose")
        for _ in range(2):  # the second time its mate has ended with it
            with pytest.raises(WorkerLost, match="counting/3 is lost: on purpose"):
                await ranks.each("steps", every, what="steps")
            assert (ranks.left, ranks.whole) == ([0, 1], [0])
        assert "since counting/3 is lost" in workers.lost[2]
        assert await ranks.answered("steps", every, what="steps") == {0: 5, 1: 5}
        await workers.kill(0, "on purpose, too")
        with pytest.raises(WorkerLost, match="counting/0 is lost: on purpose, too"):
            await ranks.answered("steps", every, what="steps")

    with_ranks([5, 5, 5, 5], use)


def test_replicas_can_heal_others_only_where_all_that_are_left_have_made_as_many_steps() -> None:
    async def use(workers: Workers[Any], ranks: RankWorkers) -> None:
        group = TrainerGroup("trainer", ranks)
        assert not await group.is_whole(stepped=False)
        await workers.kill(1, "on purpose")
        with pytest.raises(WorkerLost):
            await ranks.each("steps", {1: ()}, what="steps")
        assert await group.is_whole(stepped=False)
        await workers.kill(2, "on purpose, too")
        assert not await group.is_whole(stepped=False)

    with_ranks([1, 1, 0, 0], use)


class Replica:
    """Each rank has all of the state: what it is made with, until it loads a checkpoint or is healed."""

    kind: ClassVar[str] = "replica"
    types: ClassVar[WireTypes] = WireTypes({})
    made: ClassVar[dict[int, Replica]] = {}
    """By rank."""

    def __init__(self, spec: str, host: Host) -> None:
        self.state, self._steps = spec, 0
        self.made[host.rank] = self

    def meet(self, seconds: float, host: str) -> tuple[str, int]:
        return "", 0

    def pair(self, *meeting: object) -> None: ...

    def discard(self) -> None: ...

    def recall(self, steps: int) -> None: ...

    def plane(self) -> tuple[str, str]:
        return "shm", ""

    def load(self, path: str) -> None:
        self.state, self._steps = path, 0

    def reaches(self) -> list[int]:
        return [self._steps]

    def heal(self, replica: int, steps: int) -> None:
        self.state, self._steps = self.made[replica].state, steps


async def dies_as_it_heals(group: TrainerGroup, workers: Workers[Any], ranks: RankWorkers, *, heals: int) -> None:
    """The first one dies, is made anew, and then the one that gives it its state."""
    await workers.kill(0, "on purpose")
    assert await group.is_whole(stepped=False)
    restart = ranks.restart

    async def restarted(replicas: Any) -> list[str]:
        renewed = await restart(replicas)
        await workers.kill(heals, "as it heals")
        return renewed

    ranks.restart = restarted  # type: ignore[assignment, method-assign]
    with pytest.raises(WorkerLost, match=f"replica/{heals} is lost: as it heals"):
        await group.heal(stepped=False)
    ranks.restart = restart  # type: ignore[method-assign]


@pytest.mark.parametrize("replicas", [2, 3])
def test_one_that_was_made_anew_gives_its_state_to_nobody_before_it_has_that_of_the_others(replicas: int) -> None:
    """Behind a checkpoint that was loaded none has made a step more than one that is new."""

    async def main() -> None:
        runtime = InlineRuntime()
        try:
            workers = await runtime.start(Replica, ["the model's files"] * replicas, Placement())
            ranks = RankWorkers(workers, runtime.clock, 1.0, Layout(dp=replicas))
            group = TrainerGroup("trainer", ranks)
            await group.load(Path("commit"))
            await dies_as_it_heals(group, workers, ranks, heals=1)
            assert await group.is_whole(stepped=False) == (replicas == 3)
            if replicas == 3:
                assert await group.heal(stepped=False) == ["replica/0", "replica/1"]
            else:  # as a run that goes back to the commit
                await group.restart()
                await group.load(Path("commit"))
            assert [Replica.made[rank].state for rank in range(replicas)] == ["commit"] * replicas
            await workers.kill(0, "once more")
            assert await group.is_whole(stepped=False)
            assert await group.heal(stepped=False) == ["replica/0"]
            assert Replica.made[0].state == "commit"
        finally:
            await runtime.close()

    asyncio.run(main())


def test_where_ranks_cannot_meet_is_told() -> None:
    with pytest.raises(ConfigError, match=r"cannot meet on the network of 255\..+; set weights\.host to"):
        Meeting(1.0, "255.255.255.255")
    host, port = Meeting(1.0).at
    assert host == "127.0.0.1"
    assert port > 0


class Sharing:
    """What it is given is what it answers: nothing is told of a row but its length."""

    kind: ClassVar[str] = "sharing"
    types: ClassVar[WireTypes] = WireTypes({"step_report": StepReport})

    def __init__(self, spec: None, host: object) -> None:
        self._taken: list[list[int]] = []

    def take(self, parts: list[list[list[int]]], coefficient: float | None) -> None:
        self._taken = [[len(row) for row in rows] for rows in parts]

    def accumulate_taken(self) -> list[list[int]]:
        return [[sum(rows)] * len(rows) for rows in self._taken]

    def add_up(self) -> None: ...

    def step(self) -> StepReport:
        return StepReport(0.0, 0.0, 0.0, False, 1.0, {}, {}, 0, 0, 0, read_bytes=3, told_bytes=4)

    def tokens(self) -> int:
        return sum(map(sum, self._taken))


def test_ranks_have_as_much_over_all_calls_of_a_batch_and_the_next_batch_begins_anew() -> None:
    """A call of one row is whose that has fewer tokens yet, the first one's if both have as many."""

    async def main() -> None:
        runtime = InlineRuntime()
        try:
            workers = await runtime.start(Sharing, [None, None], Placement())
            group = TrainerGroup("trainer", RankWorkers(workers, runtime.clock, 1.0, Layout(dp=2)), max_tokens=100)
            had = []
            for call in range(4):
                rows: Any = [[[0] * 10 * (call + 1)]]
                await group.accumulate(rows)
                had.append([(await workers.call("tokens", rank=rank, what="tokens"))[0] for rank in (0, 1)])
                if call == 2:
                    report = await group.step()
                    assert (report.read_bytes, report.told_bytes) == (6, 8)
            assert had == [[10, 0], [10, 20], [30, 20], [40, 20]]
        finally:
            await runtime.close()

    asyncio.run(main())


def test_a_loss_that_its_own_call_tells_behind_anothers_error_is_what_is_raised() -> None:
    """A cluster tells who asks of a lost machine before it tells of the worker's end."""

    async def main() -> None:
        runtime = InlineRuntime()
        try:
            workers = await runtime.start(Saving, [3, 2], Placement())

            async def call(method: str, *args: Any, rank: int | None = None, **more: Any) -> list[Any]:
                if rank == 0:
                    raise WorkerError(0, "RuntimeError", "the connection was reset", trace="in gloo")
                await asyncio.sleep(0.05)
                raise WorkerLost(1, "it is unavailable", worker="saving/1")

            workers.call = call  # type: ignore[method-assign]
            ranks = RankWorkers(workers, runtime.clock, 1.0, Layout(dp=2, zero=2))
            with pytest.raises(WorkerLost, match="saving/1 is lost: it is unavailable"):
                await ranks.each("take_state", {0: (True,), 1: (True,)}, what="a checkpoint")
            assert workers.lost == {0: "it has a part of the model alone, since saving/1 is lost: it is unavailable"}
        finally:
            await runtime.close()

    asyncio.run(main())


class Staged:
    """The first waits for a gradient that the last, whose loss fails, does not give."""

    kind: ClassVar[str] = "staged"
    types: ClassVar[WireTypes] = WireTypes({})

    def __init__(self, spec: None, host: Host) -> None:
        self.rank = host.rank

    async def accumulate_taken(self) -> None:
        if self.rank == 1:
            raise PieceError("algorithm.loss raised ValueError: mine")
        await asyncio.sleep(60)


def test_a_loss_of_the_users_that_fails_on_one_rank_is_told_at_once() -> None:
    async def main() -> None:
        runtime = InlineRuntime()
        try:
            workers = await runtime.start(Staged, [None, None], Placement())
            ranks = RankWorkers(workers, runtime.clock, 1.0, Layout(pp=2))
            async with asyncio.timeout(20):
                with pytest.raises(PieceError, match=r"^algorithm\.loss raised ValueError: mine$"):
                    await ranks.each("accumulate_taken", {0: (), 1: ()}, what="a micro-batch")
            assert "staged/1 is lost: it raised PieceError" in workers.lost[0]
        finally:
            await runtime.close()

    asyncio.run(main())


class Timed:
    """Its calls take what they are told to, by a clock that nothing else moves."""

    kind: ClassVar[str] = "timed"
    types: ClassVar[WireTypes] = WireTypes({})
    time: ClassVar[list[float]] = [0.0]

    def __init__(self, spec: None, host: object) -> None: ...

    def step(self, seconds: float) -> None:
        self.time[0] += seconds

    async def send(self, seconds: float) -> None:
        self.time[0] += seconds


def test_each_rank_is_busy_while_a_call_is_at_work_on_its_lane() -> None:
    async def main() -> None:
        runtime = InlineRuntime()
        clock: Any = SimpleNamespace(now=lambda: Timed.time[0])
        try:
            two = RankWorkers(await runtime.start(Timed, [None] * 2, Placement()), clock, 1.0, Layout(dp=2))
            for rank, seconds in ((0, 2.0), (1, 3.0), (0, 0.5)):
                await two.each("step", {rank: (seconds,)}, what="a step")
                await two.each("send", {rank: (7.0,)}, what="weights on their way")
            assert two.busy_s("trainer") == {"trainer": 5.5, "trainer/0": 2.5, "trainer/1": 3.0}
            one = RankWorkers(await runtime.start(Timed, [None], Placement()), clock, 1.0)
            await one.call("step", 1.5, what="a step")
            assert one.busy_s("reference") == {"reference": 1.5}
        finally:
            await runtime.close()

    asyncio.run(main())


def test_what_a_rank_has_another_lane_do_is_told_by_its_being_async() -> None:
    methods = {name for name, method in vars(TrainerRank).items() if inspect.iscoroutinefunction(method)}
    assert {name for name in methods if not name.startswith("_")} == BESIDE_ITS_LANE


LOST = Ref("elsewhere", 0, ("tokens",))


class Telling:
    """Tells refs until its second pass, in which it raises what it is told to."""

    kind: ClassVar[str] = "telling"
    types: ClassVar[WireTypes] = WireTypes({})

    def __init__(self, how: str, host: Host) -> None:
        self._how = how
        self._host = host
        self._passes = 0
        self._taken: list[list[RowToTrain]] = []
        self.told: list[Ref] = []

    async def scores(self, column: str, rows: Sequence[RowToTrain]) -> list[tuple[Ref]]:
        return [(ref,) for ref in self._pass(rows)]

    async def take(self, parts: list[list[RowToTrain]], coefficient: float | None) -> None:
        self._taken = parts

    async def accumulate_taken(self) -> list[list[Ref]]:
        return [self._pass(rows) for rows in self._taken]

    def _pass(self, rows: Sequence[RowToTrain]) -> list[Ref]:
        self._passes += 1
        if self._how and self._passes == 2:
            raise RefLost(LOST) if self._how == "RefLost" else RuntimeError(self._how)
        found = [self._host.put({"scores": len(row)}) for row in rows]
        self.told += found
        return found


@pytest.mark.parametrize("does", ["scores", "accumulate"])
@pytest.mark.parametrize("how", ["RefLost", "RuntimeError"])
def test_what_others_told_is_let_go_where_a_rank_fails(does: str, how: str) -> None:
    async def main() -> None:
        runtime = InlineRuntime()
        made: list[Telling] = []
        columns = {"tokens": LOST, "kept_sets": None, "temperatures": None}

        class Made(Telling):
            def __init__(self, how: str, host: Host) -> None:
                super().__init__(how, host)
                made.append(self)

        try:
            workers = await runtime.start(Made, ["", how], Placement())
            ranks = RankWorkers(workers, runtime.clock, 1.0, Layout(dp=2))
            group = TrainerGroup("trainer", ranks, max_tokens=4, refs=runtime.refs)
            rows = [to_train(row(place, columns, length=4), (), ()) for place in range(4)]
            with pytest.raises(RuntimeError, match=r"does not keep the columns|RuntimeError"):
                await (group.scores("reference", rows) if does == "scores" else group.accumulate([rows]))
            assert made[0].told
            for ref in made[0].told:
                with pytest.raises(RefLost):
                    runtime.refs.get(ref)
        finally:
            await runtime.close()

    asyncio.run(main())
