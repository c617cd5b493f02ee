"""The reward model's passes: with `by_group` what came together does not matter."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.experience.columns import FinishedGroup, put_samples
from headrace.experience.header import header_of
from headrace.experience.index import Consumer
from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus
from headrace.experience.table import ExperienceTable
from headrace.observe.waits import WaitMeter
from headrace.rewards.model import Answered, ModelReward
from headrace.roles.context import RoleContext
from headrace.roles.reward import RewardRole
from headrace.runtime.inline import InlineRuntime


def group(position: int) -> Group:
    """Episodes of 2, 3 and 4 tokens."""
    key = GroupKey(0, position, 0)

    def sample(episode: int, length: int) -> Sample:
        mask = np.arange(length) > 0
        return Sample(
            group=key,
            episode=episode,
            index=0,
            tokens=np.full(length, position, np.int32),
            loss_mask=mask,
            logprobs=np.zeros(length, np.float32),
            versions=np.where(mask, 0, -1).astype(np.int32),
            branches=np.where(mask, 0, -1).astype(np.int32),
            status=SampleStatus.COMPLETED,
            reward=0.5,
        )

    return Group(key, str(position), 0, 0, tuple(sample(i, n) for i, n in enumerate((2, 3, 4))))


@pytest.mark.parametrize(("by_group", "expected"), [(False, [[2, 3, 4, 2, 3, 4]]), (True, [[2, 3, 4], [2, 3, 4]])])
def test_rows_that_share_a_pass(by_group: bool, expected: list[list[int]]) -> None:
    passes: list[list[int]] = []

    class Lengths:
        max_tokens = 100

        async def scores(self, samples: Sequence[Answered]) -> list[float]:
            passes.append([each.length for each in samples])
            return [float(each.length) for each in samples]

    async def main() -> None:
        runtime = InlineRuntime()
        consumers = [Consumer("reward", frozenset({"tokens"})), Consumer("filter", frozenset({"reward"}))]
        table = ExperienceTable(consumers, capacity=4, lease_s=60.0, clock=runtime.clock)
        flow: Any = SimpleNamespace(is_finished=False)
        context = RoleContext(runtime, flow, table, WaitMeter(runtime.clock.now), lambda *_: None, 60.0)
        role = RewardRole(context, ModelReward(Lengths(), 10.0), by_group=by_group)
        for one in (group(1), group(0)):
            table.reserve(one.key)
            finished = FinishedGroup(header_of(one), put_samples(table.refs, one))
            pairs = zip(finished.header.samples, finished.refs, strict=True)
            rows = [(header, {"tokens": ref, "scored": header.reward}) for header, ref in pairs]
            table.put(one.key, rows, group=finished)
        running = runtime.spawn(role.run(), "reward")
        lease = await table.lease("filter", lambda ready: list(ready) if len(ready) == 6 else [], seconds=5, what=str)
        assert lease is not None
        assert [row.columns["reward"] for row in lease.rows] == [20.5, 30.5, 40.5] * 2
        flow.is_finished = True
        table.wake_all()
        await running
        await runtime.close()

    asyncio.run(main())
    assert passes == expected
