"""Where ranks score together and one cannot read its rows, none begins a pass in which it would wait for that one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from table_rows import row

from headrace.models.packing import MicroBatch
from headrace.rewards.model_reward import Answered
from headrace.roles.columns.frozen import InRanks
from headrace.roles.columns.reward_model import AskedRewardModel
from headrace.roles.workers.frozen import FrozenSpec, ReferenceWorker
from headrace.roles.workers.reward import RewardSpec, RewardWorker
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.workers import Host, Placement
from headrace.training.group import TrainerGroup
from headrace.training.layouts.ranks import Layout
from headrace.training.rank import TRAINER_TYPES, TrainerRank
from headrace.training.rank_task import Task
from headrace.training.rank_workers import RankWorkers
from headrace.training.rows.packed_rows import to_train
from headrace.training.rows.row_reader import RowReader
from headrace.training.scoring import Scoring

LENGTH = 4
PASSES: list[list[int]] = []
"""Of each the tokens that a rank had in it."""
BOTH = threading.Barrier(2)


class Joint:
    """A rank's part of a model: whoever begins a pass waits for the other."""

    def logprobs(self, micro: MicroBatch) -> torch.Tensor:
        self._begin(micro.tokens.tolist())
        return micro.tokens.float()

    def scores(self, micro: MicroBatch) -> torch.Tensor:
        return self.logprobs(micro)[micro.sequence_starts[:-1]]

    def idle(self, *, trains: bool = False) -> None:
        self._begin([])

    def _begin(self, tokens: list[int]) -> None:
        PASSES.append(tokens)
        BOTH.wait(2.0)


class Trained(TrainerRank):
    kind: ClassVar[str] = "trained"
    types = TRAINER_TYPES

    def __init__(self, spec: None, host: Host) -> None:
        model: Any = Joint()
        reader = RowReader(host.refs)
        task = Task((), {"reference": Scoring(reader, model.logprobs, "reference")}, reader=reader)
        super().__init__(model, host, task, device=torch.device("cpu"))


async def frozen(runtime: InlineRuntime, ranks: RankWorkers, refs: Sequence[Ref]) -> list[list[float]]:
    given = [to_train(each, each.header.spans, ()) for each in rows(refs)]
    found = await InRanks(ranks, "reference", runtime.refs, 2 * LENGTH).scores(given)
    return [runtime.refs.get(ref)["reference"].tolist() for (ref,) in found]


async def trained(runtime: InlineRuntime, ranks: RankWorkers, refs: Sequence[Ref]) -> list[list[float]]:
    given = [to_train(each, each.header.spans, ()) for each in rows(refs)]
    found = await TrainerGroup("trainer", ranks, max_tokens=2 * LENGTH).scores("reference", given)
    return [runtime.refs.get(ref)["reference"].tolist() for (ref,) in found]


async def rewarded(runtime: InlineRuntime, ranks: RankWorkers, refs: Sequence[Ref]) -> list[list[float]]:
    found = await AskedRewardModel(ranks, 5 * LENGTH).scores([Answered(ref, LENGTH) for ref in refs])
    return [[score] * LENGTH for score in found]


def rows(refs: Sequence[Ref]) -> list[Any]:
    beside = {"kept_sets": None, "temperatures": None}
    return [row(place, {**beside, "tokens": ref}, length=LENGTH) for place, ref in enumerate(refs)]


KINDS: list[tuple[type, object, Callable[..., Any]]] = [
    (ReferenceWorker, FrozenSpec("", "float32", "cpu", 1.0), frozen),
    (Trained, None, trained),
    (RewardWorker, RewardSpec("", "float32", "cpu"), rewarded),
]


@pytest.mark.parametrize(("worker", "spec", "scores"), KINDS, ids=[each.__name__ for each, _, _ in KINDS])
def test_none_begins_a_pass_until_all_have_read_their_rows(
    worker: Any, spec: Any, scores: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for where, names in (
        ("frozen", ("load_causal_lm", "FrozenScorer")),
        ("reward", ("load_reward_model", "FrozenRewardModel")),
    ):
        for name in names:
            monkeypatch.setattr(f"headrace.roles.workers.{where}.{name}", lambda *_, **__: Joint())
    PASSES.clear()
    BOTH.reset()

    async def main() -> None:
        runtime = InlineRuntime()
        try:
            workers = await runtime.start(worker, [spec, spec], Placement())
            ranks = RankWorkers(workers, runtime.clock, 1.0, Layout(dp=2, zero=3))
            refs = [runtime.refs.put({"tokens": np.full(LENGTH, place, np.int32)}) for place in range(5)]
            for lost in range(4, -1, -1):  # each time of a row of another rank, or another pass
                columns = runtime.refs.get(refs[lost])
                runtime.refs.free(refs[lost])
                with pytest.raises(RefLost):
                    await scores(runtime, ranks, refs)
                assert PASSES == []
                assert not workers.lost
                refs[lost] = runtime.refs.put(columns)
            assert await scores(runtime, ranks, refs) == [[float(place)] * LENGTH for place in range(5)]
            assert len(PASSES) == 4, "two of each rank"
        finally:
            await runtime.close()

    asyncio.run(main())
