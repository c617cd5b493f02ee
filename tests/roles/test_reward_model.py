"""The reward model as a worker: passes within the budget, in the samples' order, of arrays and of refs alike."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from controller_jobs import make_model
from transformers import AutoModelForSequenceClassification

from headrace.rewards.model_reward import Answered
from headrace.roles.columns.reward_model import AskedRewardModel
from headrace.roles.workers.reward import RewardSpec, RewardWorker
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.process.processes import Processes
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Host, Placement
from headrace.training.rank_workers import RankWorkers


class Sums:
    """In the place of the model: scores a sample by the sum of its tokens, and keeps the sizes of its passes."""

    kind: ClassVar[str] = RewardWorker.kind
    types: ClassVar[WireTypes] = RewardWorker.types

    def __init__(self, spec: RewardSpec, host: Host) -> None:
        self._host = host
        self.passes: list[int] = []

    def scores(self, samples: Sequence[Answered]) -> list[float]:
        self.passes.append(sum(each.length for each in samples))
        return [float(self._tokens(each).sum()) for each in samples]

    def sizes(self) -> list[int]:
        return self.passes

    def _tokens(self, sample: Answered) -> Any:
        tokens = sample.tokens
        found = self._host.refs.get(tokens, ("tokens",))["tokens"] if isinstance(tokens, Ref) else tokens
        return found[: sample.length]


def ones(length: int) -> Answered:
    return Answered(np.ones(length + 2, np.int32), length)


def with_runtime(body: Callable[[InlineRuntime], Awaitable[None]], processes: Processes | None = None) -> None:
    async def main() -> None:
        runtime = InlineRuntime(apart=processes)
        try:
            await body(runtime)
        finally:
            await runtime.close()

    asyncio.run(main())


def test_a_pass_keeps_to_its_budget_and_a_longer_sample_is_one_of_its_own() -> None:
    async def body(runtime: InlineRuntime) -> None:
        workers = await runtime.start(Sums, [RewardSpec("", "float32", "cpu")], Placement())
        asked = AskedRewardModel(RankWorkers(workers, runtime.clock, 60.0), max_tokens=5)
        assert await asked.scores([ones(length) for length in (3, 2, 7, 1)]) == [3.0, 2.0, 7.0, 1.0]
        assert (await workers.call("sizes", rank=0, what="sizes"))[0] == [5, 7, 1]

    with_runtime(body)


def test_columns_that_are_gone_are_told_as_lost_and_nothing_else_is() -> None:
    async def body(runtime: InlineRuntime) -> None:
        workers = await runtime.start(Sums, [RewardSpec("", "float32", "cpu")], Placement())
        asked = AskedRewardModel(RankWorkers(workers, runtime.clock, 60.0), 100)
        ref = runtime.refs.put({"tokens": np.arange(4, dtype=np.int32)})
        assert await asked.scores([Answered(ref, 3)]) == [3.0]
        runtime.refs.free(ref)
        with pytest.raises(RefLost) as lost:
            await asked.scores([ones(2), Answered(ref, 3)])
        assert lost.value.ref == ref

    with_runtime(body)


@pytest.mark.slow
@pytest.mark.cpu
def test_in_a_process_it_gives_the_same_scores_bit_for_bit(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1).save_pretrained(tmp_path / "rm")
    found: dict[bool, list[float]] = {}

    async def body(runtime: InlineRuntime, process: bool) -> None:
        where = Placement(process=process, threads=1 if process else None)
        spec = RewardSpec(str(tmp_path / "rm"), "float32", "cpu")
        workers = await runtime.start(RewardWorker, [spec], where)
        asked = AskedRewardModel(RankWorkers(workers, runtime.clock, 60.0), max_tokens=40)
        of_ref = runtime.refs.put({"tokens": np.arange(1, 30, dtype=np.int32)})
        given = [Answered(np.arange(n, 2 * n, dtype=np.int32), n - 1) for n in (4, 20, 7)]
        found[process] = await asked.scores([*given, Answered(of_ref, 25)])

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the process has one, and more of them add in another order
    try:
        with_runtime(lambda runtime: body(runtime, False))
    finally:
        torch.set_num_threads(threads)
    with_runtime(lambda runtime: body(runtime, True), Processes("test"))
    assert found[False] == found[True]
    assert len(set(found[True])) == 4
