"""Which replicas take part, while there is no room for some, and who has which rows then."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.runtime.placing import NoRoom, longest_for_room
from headrace.runtime.workers import WorkerLost
from headrace.training.absent_replicas import AbsentReplicas
from headrace.training.layouts.ranks import Layout
from headrace.training.rank_workers import ranks_of
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
