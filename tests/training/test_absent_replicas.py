"""Which replicas take part, while there is no room for some, and who has which rows then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from headrace.config import ConfigError
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.placing import NoRoom, longest_for_room
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Host, Placement, WorkerLost, Workers
from headrace.training.absent_replicas import AbsentReplicas
from headrace.training.group import TrainerGroup
from headrace.training.layouts.ranks import Layout
from headrace.training.rank_workers import RankWorkers, ranks_of, who_saves
from headrace.training.shared_passes import SharedPasses


class Cluster:
    """With room for some replicas."""

    def __init__(self) -> None:
        self.room: set[int] = set()
        self.lost: set[int] = set()
        self.dies: set[int] = set()
        """As they are made."""
        self.absent = AbsentReplicas(self.make, lambda replica: replica not in self.lost)

    async def make(self, replica: int) -> None:
        assert longest_for_room() == 10
        await asyncio.sleep(0)
        if replica in self.dies:
            raise WorkerLost(replica, "it ended", worker=f"trainer/{replica}")
        if replica not in self.room:
            raise WorkerLost(replica, "nothing is free", worker=f"trainer/{replica}") from NoRoom("nothing is free")
        self.lost.discard(replica)

    def renewed(self, *replicas: int) -> list[int]:
        return asyncio.run(self.absent.renew(replicas))

    def are_absent(self) -> list[int]:
        return [replica for replica in range(4) if replica in self.absent]


def test_those_without_room_are_absent_until_they_are_made_and_renewed() -> None:
    cluster = Cluster()
    cluster.room = {1}
    assert cluster.renewed(1, 2, 3) == [1]
    assert cluster.are_absent() == [2, 3]
    assert cluster.absent.why[2] == "trainer/2 is lost: nothing is free"
    with pytest.raises(WorkerLost) as none:
        asyncio.run(cluster.absent.make_again())
    assert isinstance(none.value.__cause__, NoRoom)
    cluster.room = {3}
    asyncio.run(cluster.absent.make_again())
    assert cluster.are_absent() == [2, 3], "it has no state yet"
    assert cluster.renewed(2, 3) == [3], "nobody waits once more for the other's room"
    assert cluster.are_absent() == [2]
    assert longest_for_room() == float("inf")


def test_one_that_was_made_and_is_lost_before_it_takes_part_is_absent_still() -> None:
    cluster = Cluster()
    assert cluster.renewed(2) == []
    cluster.room = {2}
    asyncio.run(cluster.absent.make_again())
    cluster.lost = {2}
    assert cluster.renewed(2) == []
    assert cluster.are_absent() == [2]
    asyncio.run(cluster.absent.make_again())
    assert cluster.renewed(2) == [2]
    assert cluster.are_absent() == []


def test_one_that_dies_as_it_is_made_is_a_loss() -> None:
    cluster = Cluster()
    cluster.dies = {1}
    with pytest.raises(WorkerLost, match="it ended"):
        cluster.renewed(1)
    assert cluster.are_absent() == []


@pytest.mark.parametrize(
    ("layout", "present", "ranks", "heads"),
    [
        (Layout(dp=3), [0, 2], [0, 2], [0, 2]),
        (Layout(dp=4, zero=2, replicas=2), [1], [2, 3], [2, 3]),
        (Layout(dp=2, tp=2, zero=2, replicas=2), [1], [2, 3], [1]),
        (Layout(dp=2, pp=2, zero=2, replicas=2), [0], [0, 2], [0]),
    ],
    ids=["ranks", "groups", "tensor", "stages"],
)
def test_rows_are_shared_by_those_that_take_part(
    layout: Layout, present: list[int], ranks: list[int], heads: list[int]
) -> None:
    """`heads`: the parts of the data that are left. The last of them has had tokens already."""
    taking: Any = SimpleNamespace(layout=layout, present=present)
    assert list(ranks_of(taking)) == ranks
    had = [0] * layout.dp
    had[heads[-1]] = 5
    parts = SharedPasses(taking, 10).parts([10, 10, 10, 10, 1], had)
    assert [part for part, micros in enumerate(parts) if micros] == heads
    assert sorted(place for micros in parts for micro in micros for place in micro) == [0, 1, 2, 3, 4]
    tokens = [sum([10, 10, 10, 10, 1][place] for micro in parts[head] for place in micro) for head in heads]
    assert tokens == ([21, 20] if len(heads) == 2 else [41])


class Replica:
    """Each rank has all of the state, which is a number."""

    kind: ClassVar[str] = "trainer"
    types: ClassVar[WireTypes] = WireTypes({})
    made: ClassVar[dict[int, Replica]] = {}
    """By rank."""
    apart: ClassVar[set[int]] = set()
    """Ranks that nobody can meet."""

    def __init__(self, spec: int, host: Host) -> None:
        self.state, self.rank = spec, host.rank
        self.paired: tuple[int, int] = 0, 0
        self.made[host.rank] = self

    def meet(self, seconds: float, host: str) -> tuple[str, int]:
        return "", 0

    def pair(self, replica: int, size: int, at: object, seconds: float) -> None:
        if self.rank in self.apart:
            raise ConfigError("the port is closed")
        self.paired = replica, size

    def discard(self) -> None: ...

    def recall(self, steps: int) -> None: ...

    def reaches(self) -> list[int]:
        return [0]

    def plane(self) -> tuple[str, str]:
        return "shm", f"/of/{self.rank}"

    def heal(self, replica: int, steps: int) -> None:
        (giver,) = (one for one in self.made.values() if one.paired == (replica, self.paired[1]))
        self.state = giver.state


class Ranks:
    """Of three replicas, with room for those that are not `short`."""

    def __init__(self, workers: Workers[Any], runtime: InlineRuntime) -> None:
        self.workers = workers
        self.ranks = RankWorkers(workers, runtime.clock, 1.0, Layout(dp=3))
        self.group = TrainerGroup("trainer", self.ranks, ("shm", "/of/0"))
        self.short: set[int] = set()
        restart = workers.restart

        async def restarted(rank: int) -> None:
            if rank in self.short:
                await workers.kill(rank, "its node is lost")
                raise WorkerLost(rank, "nothing is free", worker=f"trainer/{rank}") from NoRoom("nothing is free")
            await restart(rank)

        workers.restart = restarted  # type: ignore[method-assign]

    async def comes_back(self, replica: int) -> None:
        """It is lost, gone on without, and made again."""
        self.short = {replica}
        await self.workers.kill(replica, "on purpose")
        await self.group.heal(stepped=False, without=True)
        self.short.clear()
        await self.group.make_again()


def with_three(use: Callable[[Ranks], Awaitable[None]]) -> None:
    async def main() -> None:
        runtime = InlineRuntime()
        try:
            workers = await runtime.start(Replica, [0, 0, 0], Placement())
            ranks = Ranks(workers, runtime)
            await ranks.ranks.come_together()
            for one in Replica.made.values():
                one.state = 7
            await use(ranks)
        finally:
            await runtime.close()

    asyncio.run(main())


def test_weights_leave_from_the_first_that_takes_part_also_where_a_second_loss_ended_the_healing() -> None:
    async def use(of: Ranks) -> None:
        moves = list[str]()

        async def moved() -> None:
            moves.append(of.group.leaves_from)

        of.group.goes_on(None, moved)  # type: ignore[arg-type]
        of.short = {0}
        await of.workers.kill(0, "on purpose")
        heal = Replica.heal

        def dies(one: Replica, replica: int, steps: int) -> None:
            if one.rank == 2:
                of.workers._members[2].lose("as it heals")  # type: ignore[attr-defined]
            heal(one, replica, steps)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Replica, "heal", dies)
            with pytest.raises(WorkerLost, match="as it heals"):
                await of.group.heal(stepped=False, without=True)
        assert await of.group.heal(stepped=False, without=True) == ["trainer/0", "trainer/2"]
        assert (of.group.plane(), moves) == (("shm", "/of/1"), ["trainer/1"])
        assert [Replica.made[rank].paired for rank in (1, 2)] == [(0, 2), (1, 2)]
        assert Replica.made[2].state == 7
        of.short.clear()
        await of.group.make_again()
        assert Replica.made[0].state == 0
        assert who_saves(of.ranks) == (1,)
        await of.group.heal(stepped=False, without=True)
        assert (of.group.plane(), moves, of.group.absent) == (("shm", "/of/0"), ["trainer/1", "trainer/0"], {})
        assert [one.state for one in Replica.made.values()] == [7] * 3

    with_three(use)


def test_where_none_that_had_the_state_is_left_its_loss_is_raised_and_nothing_is_saved() -> None:
    async def use(of: Ranks) -> None:
        await of.comes_back(0)
        for rank in (1, 2):
            await of.workers.kill(rank, "on purpose, too")
        with pytest.raises(WorkerLost, match="trainer/1 is lost: on purpose, too"):
            await of.group.heal(stepped=False, without=True)
        assert who_saves(of.ranks) == (1,), "whose loss is raised; the one that is there has no state"

    with_three(use)


def test_one_that_cannot_meet_the_others_where_it_came_back_is_gone_on_without() -> None:
    async def use(of: Ranks) -> None:
        await of.comes_back(1)
        assert of.group.may_come_back
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Replica, "apart", {1})
            await of.group.heal(stepped=False, without=True)
        assert of.group.absent == {"trainer/1": "it cannot meet the others: the port is closed"}
        assert not of.group.may_come_back
        assert [Replica.made[rank].paired for rank in (0, 2)] == [(0, 2), (1, 2)]
        assert 1 in of.workers.lost

    with_three(use)
