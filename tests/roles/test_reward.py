"""The reward model's role holds what it scores, writes both columns, and lets it go; a score that is no number costs
its group, and columns that a worker lost are asked for again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from role_house import LONG_S, House, all_is_gone, try_role

from headrace.experience.records.restored_refs import RestoredRefs
from headrace.experience.sample import GroupKey
from headrace.rewards.model_reward import Answered, ModelReward
from headrace.roles.columns.filling import ColumnRole
from headrace.roles.columns.reward import RewardColumns
from headrace.runtime.refs import Ref, RefLost

FIRST, SECOND = GroupKey(0, 0, 0), GroupKey(0, 1, 0)


class Model:
    """Scores each sample by its place in its pass, after longer than a lease lasts."""

    max_tokens = 100

    def __init__(self, house: House, *scores: float, loses: int = 0) -> None:
        self._house = house
        self._scores = scores
        self._loses = loses
        self.passes: list[list[int]] = []

    async def scores(self, samples: Sequence[Answered]) -> list[float]:
        self.passes.append([sample.length for sample in samples])
        self._house.calls += 1
        await self._house.runtime.clock.sleep(LONG_S)
        tokens = [sample.tokens for sample in samples]
        assert all(isinstance(ref, Ref) for ref in tokens)
        if self._house.calls <= self._loses:
            raise RefLost(next(ref for ref in tokens if isinstance(ref, Ref)))
        return list(self._scores) if self._scores else [float(place) for place in range(len(samples))]


def try_reward(model: Any, body: Any, *, by_group: bool = False, restored: bool = False) -> None:
    made: list[Model] = []

    def make(house: House) -> ColumnRole:
        made.append(model(house))
        remove = house.flow.drop

        def drop(key: GroupKey, reason: str, *more: object) -> None:
            remove(key, reason, *more)
            house.table.remove(key)

        house.flow.drop = drop  # type: ignore[method-assign]
        return ColumnRole(house.context, RewardColumns(house.context, ModelReward(made[-1], 10.0), by_group=by_group))

    async def watched(house: House) -> None:
        await body(house, made[-1])

    def nothing(place: object) -> bytes:
        raise AssertionError("nothing is read from the journal")

    try_role(
        "reward",
        ["scored"],
        ["reward", "model_score"],
        make,
        watched,
        without=["reward"],
        refs=(lambda refs: RestoredRefs(refs, nothing)) if restored else (lambda refs: refs),
        scored=0.5,
    )


@pytest.mark.parametrize(
    ("by_group", "passes", "expected"),
    [(False, [[3, 3, 3, 3]], [0.0, 1.0, 2.0, 3.0]), (True, [[3, 3], [3, 3]], [0.0, 1.0, 0.0, 1.0])],
)
def test_rows_are_held_while_they_are_scored_then_written_then_let_go(
    by_group: bool, passes: list[list[int]], expected: list[float]
) -> None:
    async def body(house: House, model: Model) -> None:
        found = await house.written("reward", "model_score")
        assert [one["model_score"] for one in found] == expected
        assert [one["reward"] for one in found] == [0.5 + 10 * score for score in expected]
        await all_is_gone(house)
        assert model.passes == passes  # nobody was given a row a second time
        assert house.events == []

    try_reward(Model, body, by_group=by_group)


def test_a_score_that_is_no_number_costs_its_group_and_the_others_are_written() -> None:
    async def body(house: House, model: Model) -> None:
        house.ids[2:] = []
        found = await house.written("reward", "model_score")
        assert [one["reward"] for one in found] == [10.5, 20.5]
        assert house.flow.dropped == [(SECOND, "reward_nan")]
        await all_is_gone(house)

    try_reward(lambda house: Model(house, 1.0, 2.0, math.nan, 3.0), body)


def test_columns_that_a_worker_lost_are_asked_for_again() -> None:
    async def body(house: House, model: Model) -> None:
        found = await house.written("model_score")
        assert [one["model_score"] for one in found] == [0.0, 1.0, 2.0, 3.0]
        assert len(model.passes) == 2

    try_reward(lambda house: Model(house, loses=1), body, restored=True)


def test_where_none_is_a_workers_a_lost_column_is_a_fault() -> None:
    async def body(house: House, model: Model) -> None:
        await house.runtime.clock.sleep(2 * LONG_S)

    with pytest.raises(RefLost):
        try_reward(lambda house: Model(house, loses=1), body)
