"""What is told of workers that were made anew as a trainer or critic is healed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from headrace.controller.healing import Healing
from headrace.runtime.workers import WorkerLost


class Group:
    """One whose ranks die as it is healed, so many times."""

    has_replicas = True

    def __init__(self, name: str, renewed: list[str], deaths: int = 0) -> None:
        self.name = name
        self._renewed = renewed
        self._deaths = deaths

    async def is_whole(self, *, stepped: bool) -> bool:
        return True

    absent: ClassVar[dict[str, str]] = {}
    may_come_back = can_be_lost = False

    without: bool | None = None
    """Whether it may go on without those that have no room, as it was told last."""

    async def heal(self, *, stepped: bool, without: bool) -> list[str]:
        self.without = without
        self._deaths -= 1
        if self._deaths >= 0:
            raise WorkerLost(1, "it ended", worker=f"{self.name}/1")
        found, self._renewed = self._renewed, []
        return found


def healed(*groups: Group, by_turns: bool = False) -> tuple[Healing, list[list[str]], list[str]]:
    """What heals them; of which workers columns are computed again each time; and what the record says of losses and of
    who was healed."""
    lost, told = list[list[str]](), list[str]()

    async def nothing(*given: object, **more: object) -> None: ...

    of: Any = SimpleNamespace
    parts = of(
        models=of(groups=groups),
        turns=of(train=nothing, generate=nothing, shares_devices=by_turns),
        actor=of(has_stepped=False, go_on=nothing),
        recorder=of(event=lambda kind, data: told.append(data["message"])),
        flow=of(train_again=lost.append, batch=3),
        critic=None,
        branch=0,
    )
    return Healing(parts, of(clock=of(now=lambda: 0.0, sleep=nothing))), lost, told


def test_columns_of_all_that_were_made_anew_are_computed_again_also_where_another_loss_came_between() -> None:
    """The trainer's rank is made anew, a second one of the critic's is lost, and then that is healed."""
    healing, lost, told = healed(Group("trainer", ["trainer/0"]), Group("critic", ["critic/0", "critic/1"], deaths=1))

    async def main() -> None:
        with pytest.raises(WorkerLost, match="critic/1 is lost"):
            await healing.after("trainer", {"message": "trainer/0 is lost"})
        for _ in range(2):
            assert await healing.after("critic", {"message": "critic/1 is lost"})

    asyncio.run(main())
    assert lost == [["trainer/0", "critic/0", "critic/1"], []], "of each healing its own"
    assert told[2].startswith("trainer/0, critic/0, critic/1 made anew")


def test_who_was_made_anew_before_the_run_went_back_is_no_part_of_the_next_healing() -> None:
    healing, lost, _ = healed(Group("trainer", ["trainer/0"]), Group("critic", ["critic/0"], deaths=1))

    async def main() -> None:
        with pytest.raises(WorkerLost):
            await healing.after("trainer", {"message": "trainer/0 is lost"})
        healing.forget()
        assert await healing.after("critic", {"message": "critic/0 is lost"})

    asyncio.run(main())
    assert lost == [["critic/0"]]


@pytest.mark.parametrize("by_turns", [False, True])
def test_a_replica_without_room_is_waited_for_where_engines_have_the_trainers_devices_in_turn(by_turns: bool) -> None:
    group = Group("trainer", ["trainer/0"])
    healing, _, _ = healed(group, by_turns=by_turns)
    assert asyncio.run(healing.after("trainer", {"message": "trainer/0 is lost"}))
    assert group.without == (not by_turns)
    group.without = None
    asyncio.run(healing.take_in())
    assert group.without == (not by_turns)
