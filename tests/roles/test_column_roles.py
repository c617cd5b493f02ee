"""Each role that fills columns leases rows for as long as it computes, writes what it found, and lets them go."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from functions_on_lane import OnLane
from role_house import STALL_S, House, all_is_gone, try_role
from torch import Tensor

from headrace.algorithms.estimate import AdvantageEstimator, Compared
from headrace.algorithms.kl_controllers import KLCoefficient
from headrace.config.algorithm import AlgorithmConfig, KLConfig
from headrace.models.packing import MicroBatch
from headrace.roles.columns.advantages import AdvantageColumns
from headrace.roles.columns.filling import ColumnRole
from headrace.roles.columns.function_stage import FunctionColumns
from headrace.roles.columns.functions import Functions
from headrace.roles.columns.own_stage import OwnStage
from headrace.roles.columns.scorer import ScoredColumns
from headrace.roles.columns.token_advantages import TokenAdvantages
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.workers import WorkerLost
from headrace.training.rows.row_reader import RowReader
from headrace.training.scoring import Scoring

LOST = Ref("functions/0", 7, ("x",))


def scorer(house: House) -> ColumnRole:
    def score(micro: MicroBatch) -> Tensor:
        house.long()
        return micro.tokens.float()

    scoring = Scoring(RowReader(house.context.refs), score, "reference")
    asked = partial(house.context.compute, "reference", "scores", scoring)
    scored = ScoredColumns(house.context, name="reference", columns=("reference",), score=asked, max_tokens=100)
    return ColumnRole(house.context, scored)


def function_stage(house: House) -> ColumnRole:
    def doubled(tokens: list[Any]) -> dict[str, list[Any]]:
        house.long()
        return {"doubled": [2.0 * one for one in tokens], "halved": [0.5 * one for one in tokens]}

    refs = house.context.refs
    stage = OwnStage(refs, doubled, name="doubles", reads=("tokens",), writes=("doubled", "halved"), by_row=False)
    estimator = AdvantageEstimator(AlgorithmConfig(advantage="mean_only"), max_length=8)
    functions = Functions({"doubles": stage}, TokenAdvantages(refs, estimator, ()), KLConfig())
    asked = OnLane(house.context, functions)
    computed = FunctionColumns(house.context, asked, name="doubles", reads=(), unit="group")
    return ColumnRole(house.context, computed)


class PlaceInGroup:
    """An estimator that looks at tokens: the advantage of each is its place among those of the group."""

    is_of_episodes = False

    def __init__(self, house: House, paid: float | None = None) -> None:
        """`paid`: the KL that the rewards pay for, summed over the episodes."""
        self._house = house
        self._paid = paid

    def at(self, data: Compared, beta: float) -> tuple[dict[str, Tensor], float | None]:
        self._house.long()
        return {"advantages": torch.arange(len(data.behavior), dtype=torch.float64)}, self._paid


def by_token(house: House) -> ColumnRole:
    return advantages_role(house, PlaceInGroup(house), ("reward", "tokens", "loss_mask", "logprobs"))


def by_episode(house: House) -> ColumnRole:
    estimator = AdvantageEstimator(AlgorithmConfig(advantage="mean_only"), max_length=8)
    return advantages_role(house, estimator, ("reward",))


def advantages_role(house: House, estimator: Any, reads: Sequence[str]) -> ColumnRole:
    functions = Functions({}, TokenAdvantages(house.context.refs, estimator, reads), KLConfig())
    asked = OnLane(house.context, functions)
    return ColumnRole(house.context, AdvantageColumns(house.context, estimator, asked, KLCoefficient(KLConfig())))


@pytest.mark.parametrize(
    ("name", "reads", "column", "make", "calls", "expected"),
    [
        ("reference", ["tokens"], "reference", scorer, 1, [[0.0, 1.0, 2.0]] * 4),
        ("doubles", ["tokens"], "doubled", function_stage, 2, [[0.0, 2.0, 4.0]] * 4),
        ("advantages", ["reward"], "advantages", by_token, 2, [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]] * 2),
        # Rewards 0 and 1, their mean 1/2; the first token is of the prompt.
        ("advantages", ["reward"], "advantages", by_episode, 0, [[0.0, -0.5, -0.5], [0.0, 0.5, 0.5]] * 2),
    ],
)
def test_a_row_is_held_while_it_is_computed_then_written_then_let_go(
    name: str, reads: list[str], column: str, make: Any, calls: int, expected: list[list[float]]
) -> None:
    async def body(house: House) -> None:
        found = await house.written(column)
        assert [one[column].tolist() for one in found] == expected
        await all_is_gone(house)
        assert house.calls == calls  # nobody was given a row a second time
        assert house.events == []

    try_role(name, reads, [column], make, body)


def test_a_role_that_gets_no_rows_says_how_long_it_has_waited_and_waits_on() -> None:
    async def body(house: House) -> None:
        await house.runtime.clock.sleep(2 * STALL_S + 1)
        waiting = {"role": "reference", "message": "has waited 100.0 s for kept groups"}
        assert house.events == [("waiting", waiting)] * 2

    try_role("reference", ["tokens"], ["reference"], scorer, body, without=["tokens"])


@pytest.mark.parametrize("lost", ["worker", "lease", "column"])
@pytest.mark.parametrize(
    ("name", "reads", "column", "make"),
    [("doubles", ["tokens"], "doubled", function_stage), ("advantages", ["reward"], "advantages", by_token)],
)
def test_rows_whose_worker_or_lease_was_lost_in_the_midst_are_leased_again_at_once(
    name: str, reads: list[str], column: str, make: Any, lost: str
) -> None:
    """What was computed for nobody is kept for nobody."""

    def losing(house: House) -> Any:
        role = make(house)
        asked, first = role._computed._functions, iter((True, False, False))

        async def answered(asking: Any) -> Any:
            if not next(first):
                return await asking
            if lost == "worker":
                asking.close()
                raise WorkerLost(0, "it was killed")
            if lost == "column":
                asking.close()
                house.table.end_leases()
                raise RefLost(LOST)
            answer = await asking
            house.table.end_leases()
            return answer

        class Losing:
            async def stage(self, *args: Any) -> Any:
                return await answered(asked.stage(*args))

            async def advantages(self, *args: Any, moves: bool) -> Any:
                return await answered(asked.advantages(*args, moves=moves))

        role._computed._functions = Losing()
        return role

    async def body(house: House) -> None:
        assert len(await house.written(column)) == 4
        await all_is_gone(house)
        assert house.calls == (3 if lost == "lease" else 2)

    try_role(name, reads, [column], losing, body)


def test_a_column_that_is_gone_while_its_lease_stands_ends_the_run() -> None:
    def losing(house: House) -> Any:
        role = function_stage(house)

        class Losing:
            async def stage(self, *args: Any) -> Any:
                raise RefLost(LOST)

        role._computed._functions = Losing()
        return role

    async def body(house: House) -> None:
        await house.settle()

    with pytest.raises(RefLost, match=r"^functions/0 does not keep the columns x \(number 7\) any more$"):
        try_role("doubles", ["tokens"], ["doubled"], losing, body)


def test_the_kl_that_a_batch_paid_for_moves_the_coefficient_of_the_next() -> None:
    """48 over 4 episodes are 12 each, twice the target of 6, of which 0.2 counts: 0.5 (1 + 0.2 * 4 / 100)."""
    kl = KLConfig(coefficient=0.5, place="reward", target=6.0, horizon=100)
    coefficient = KLCoefficient(kl)

    def role(house: House) -> ColumnRole:
        estimator: Any = PlaceInGroup(house, paid=48.0)
        reads = ("reward", "tokens", "loss_mask", "logprobs")
        asked = OnLane(house.context, Functions({}, TokenAdvantages(house.context.refs, estimator, reads), kl))
        columns = AdvantageColumns(house.context, estimator, asked, coefficient, moves=True, whole_batch=True)
        return ColumnRole(house.context, columns)

    async def body(house: House) -> None:
        house.table.write(house.ids, "batch", [0] * 4)
        assert len(await house.written("advantages")) == 4
        await all_is_gone(house)
        assert coefficient.of(0) == 0.5
        assert coefficient.of(1) == pytest.approx(0.504)

    try_role("advantages", ["reward", "batch"], ["advantages"], role, body)
