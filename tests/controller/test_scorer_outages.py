"""A run whose scorer is made anew does not stall: nobody could have brought a row meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lone_worker import LoneWorker
from table_rows import new_row

from headrace.controller.building.training_roles import TrainingRoles
from headrace.experience.columns import FinishedGroup
from headrace.experience.header import GroupHeader
from headrace.experience.leases import Consumer
from headrace.experience.sample import GroupKey
from headrace.experience.table import ExperienceTable
from headrace.observe.waits import WaitMeter
from headrace.rewards.model_reward import Answered, ModelReward
from headrace.roles.columns.filling import ColumnRole, Computed
from headrace.roles.columns.reward import RewardColumns
from headrace.roles.columns.scorer import ScoredColumns
from headrace.roles.context import RoleContext
from headrace.roles.model_return import ModelReturn
from headrace.runtime.patience import StandStill
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.training.rows.packed_rows import RowToTrain

STALL_S, AWAY_S = 60.0, 70.0


class Asked:
    """A model that is lost as it is asked first."""

    max_tokens = 100

    def __init__(self, workers: LoneWorker, returns: ModelReturn) -> None:
        self._workers = workers
        self._returns = returns
        self._calls = 0

    async def rows(self, rows: Sequence[RowToTrain]) -> list[tuple[Any]]:
        self._calls += 1
        if self._calls == 1:
            raise self._workers.lose()
        return [(np.zeros(len(each), np.float32),) for each in rows]

    async def scores(self, samples: Sequence[Answered]) -> list[float]:
        await self._returns.after(self._workers.lose())
        return [0.0] * len(samples)


@pytest.mark.parametrize("name", ["reference", "reward"])
def test_a_batch_is_trained_though_its_scorer_takes_longer_to_come_back_than_a_wait_may(name: str) -> None:
    async def main(runtime: VirtualRuntime) -> float:
        of: Any = SimpleNamespace
        workers: Any = LoneWorker()

        async def restart() -> None:
            await runtime.clock.sleep(AWAY_S)
            await workers.restart()

        returns = ModelReturn(workers, runtime.clock, restart)
        written = ("reward", "model_score") if name == "reward" else (name,)
        consumers = [Consumer(name, frozenset({"tokens", "scored"})), Consumer("actor", frozenset({"batch", *written}))]
        table = ExperienceTable(consumers, capacity=4, lease_s=60.0, clock=runtime.clock)
        flow = of(is_finished=False, is_sealed=True, rows_of_batch=lambda: 2, describe=str, batch=0)
        context = RoleContext(runtime, flow, table, WaitMeter(runtime.clock.now), lambda *_: None, STALL_S)
        asked = Asked(workers, returns)
        computed: Computed
        if name == "reward":
            computed = RewardColumns(context, ModelReward(asked, 1.0), outage=returns.outage)
        else:
            computed = ScoredColumns(
                context, name=name, columns=(name,), score=asked.rows, max_tokens=100, returns=returns
            )
        still = of(outage=StandStill(runtime.clock))
        models = of(engines=still, judges={}, returns=(returns,))
        plan = of(
            config=of(async_=of(streaming=True), runtime=of(stall_timeout_s=STALL_S)),
            workflow=None,
        )
        base, turns = of(table=table, flow=flow, context=context, hands=None), of(holds_rows=False)
        training = TrainingRoles(plan, models, base, of(), turns, of(), of())
        for position in (0, 1):
            key = GroupKey(0, position, 0)
            table.reserve(key)
            columns = {"tokens": np.full(3, 3), "scored": 0.5, "batch": 0, "kept_sets": None, "temperatures": None}
            row = new_row(key, columns)
            ref = runtime.refs.put({"tokens": columns["tokens"]})
            group = FinishedGroup(GroupHeader(key, str(position), 0, 4, (row[0],)), (ref,))
            table.put(key, [row], group=group)
        role = runtime.spawn(ColumnRole(context, computed).run(), name)
        rows = 0
        async for lease in training._loader("actor", 100, None).leases(0):
            rows += len(lease.rows)
        assert rows == 2
        flow.is_finished = True
        table.wake_all()
        await role
        return returns.outage.seconds()

    assert AWAY_S <= run_virtually(main) < 2 * AWAY_S
