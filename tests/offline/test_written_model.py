"""The model that ranks write together: it is refused where they wrote less than all of it, or more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from headrace.offline.output import OutputFolder
from headrace.offline.ranks.model_of_ranks import ModelOfRanks
from headrace.runtime.blocking import TurnedLoop
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.process.processes import Processes
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Host, Placement
from headrace.training.layouts.ranks import Layout
from headrace.training.protocol import CheckpointError, Written
from headrace.training.rank_workers import RankWorkers

SIZE = 100


class PartRank:
    """Writes so many bytes of a model of `SIZE`."""

    kind: ClassVar[str] = "rank"
    types: ClassVar[WireTypes] = WireTypes({"written": Written})

    def __init__(self, count: int, host: Host) -> None:
        self._count = count

    def export(self, path: str) -> Written:
        (Path(path) / f"{self._count}").write_text("written")
        return Written(self._count, SIZE)


@contextmanager
def model_of(*counts: int) -> Iterator[ModelOfRanks]:
    loop, runtime = TurnedLoop(), InlineRuntime()

    async def started() -> RankWorkers:
        workers = await runtime.start(PartRank, counts, Placement(deadline_s=30.0))
        return RankWorkers(workers, runtime.clock, 30.0, Layout(dp=len(counts), zero=3))

    with closing(ModelOfRanks(loop, runtime, Processes("run"), loop.run(started()), max_tokens=4)) as model:
        yield model


@pytest.mark.parametrize("second", [39, 41])
def test_parts_that_do_not_add_up_are_no_model(tmp_path: Path, second: int) -> None:
    """That which was there stays."""
    output = OutputFolder(tmp_path)
    with model_of(60, 40) as model:
        output.replace_model(model.export)
    refused = pytest.raises(
        CheckpointError, match=rf"^ranks wrote {60 + second} bytes .* which has 100: their parts do"
    )
    with model_of(60, second) as model, refused:
        output.replace_model(model.export)
    assert sorted(path.name for path in output.model.iterdir()) == ["40", "60"]
