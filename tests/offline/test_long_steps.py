"""Ranks whose step is long: it goes on as long as it gets on."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from headrace.models.packing import PackRow
from headrace.offline.loop import RankLost, _lost_ranks
from headrace.offline.output import OutputFolder
from headrace.offline.ranks.model_of_ranks import ModelOfRanks
from headrace.runtime.blocking import TurnedLoop
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.process.processes import Processes
from headrace.runtime.progress import Stuck, working
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Host, Placement
from headrace.training.protocol import StepReport
from headrace.training.rank_workers import RankWorkers

DEADLINE_S = 0.5
REPORT = StepReport(1.0, 1.0, 1e-3, False, 1.0, {}, {}, 8, 4, 0)


class SlowRank:
    """A micro-batch, a step and a part of a checkpoint take more than half of the deadline."""

    kind: ClassVar[str] = "rank"
    types: ClassVar[WireTypes] = WireTypes({"pack_row": PackRow, "step_report": StepReport})

    def __init__(self, spec: object, host: Host) -> None:
        """Nothing to load."""

    def accumulate(self, micros: Sequence[Sequence[PackRow]]) -> None:
        for rows in micros:
            with working("microbatch"):
                time.sleep(5.0 if len(rows[0]) == 3 else 0.35)

    def step(self) -> StepReport:
        with working("chunk"):
            time.sleep(2 * DEADLINE_S)
        return REPORT

    def load(self, path: str) -> None:
        time.sleep(2 * DEADLINE_S)


@contextmanager
def slow_model() -> Iterator[ModelOfRanks]:
    loop = TurnedLoop()
    runtime = InlineRuntime(limits={"microbatch": 1.0})

    async def started() -> RankWorkers:
        where = Placement(deadline_s=DEADLINE_S)
        return RankWorkers(await runtime.start(SlowRank, [0], where), runtime.clock, DEADLINE_S)

    with closing(ModelOfRanks(loop, runtime, Processes("run"), loop.run(started()), max_tokens=4)) as model:
        yield model


def rows(*lengths: int) -> list[list[PackRow]]:
    return [[PackRow(np.zeros(length, np.int32), np.ones(length, np.bool_))] for length in lengths]


@pytest.mark.slow
def test_a_step_that_gets_on_takes_as_long_as_it_does() -> None:
    with slow_model() as model:
        assert model.train(rows(4, 4, 4)) == REPORT


def test_one_that_does_not_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.runtime.call_watch._LOOK_S", 0.05)
    with slow_model() as model, pytest.raises(Stuck, match=r"no microbatch has ended"):
        model.train(rows(3))


def test_what_says_nothing_of_itself_has_a_deadline_and_the_message_says_how_to_go_on(tmp_path: Path) -> None:
    output = OutputFolder(tmp_path)
    late = pytest.raises(RankLost, match=r"^waited 0\.5 s for its part of a checkpoint .* begin again with --fresh$")
    with slow_model() as model, late, _lost_ranks(output):
        output.write_checkpoint(model.load)
    output.checkpoint.mkdir()
    late = pytest.raises(RankLost, match=r"^waited 5\.0 s for it; .*; go on with --resume: .*checkpoint is there$")
    with late, _lost_ranks(output):
        raise WaitTimeout("it", 5.0)
