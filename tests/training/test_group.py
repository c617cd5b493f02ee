"""What a rank raises reaches who asked as it was raised, and the chain of errors has an end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import pytest

from headrace.algorithms.pieces import PieceError
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Placement, WorkerLost
from headrace.training.group import TrainerGroup
from headrace.training.layouts.ranks import Layout
from headrace.training.rank_workers import RankWorkers


class Saving:
    kind: ClassVar[str] = "saving"
    types: ClassVar[WireTypes] = WireTypes({})

    def __init__(self, spec: object, host: object) -> None:
        pass

    def save(self, path: str) -> None:
        (Path(path) / "saved").touch()


def test_the_first_that_is_left_saves_and_where_none_is_the_loss_is_raised(tmp_path: Path) -> None:
    async def main() -> None:
        runtime = InlineRuntime()
        try:
            workers = await runtime.start(Saving, [None, None], Placement())
            group = TrainerGroup("trainer", RankWorkers(workers, runtime.clock, 1.0, Layout(dp=2)))
            await workers.kill(0, "on purpose")
            await group.save(tmp_path)
            (tmp_path / "saved").unlink()
            await workers.kill(1, "on purpose, too")
            with pytest.raises(WorkerLost, match="saving/0 is lost: on purpose"):
                await group.save(tmp_path)
            assert not (tmp_path / "saved").exists()
        finally:
            await runtime.close()

    asyncio.run(main())


class Raising:
    kind: ClassVar[str] = "raising"
    types: ClassVar[WireTypes] = WireTypes({})

    def __init__(self, spec: object, host: object) -> None:
        pass

    def step(self) -> None:
        try:
            raise AttributeError("of the user's own")
        except AttributeError as error:
            raise PieceError("algorithm.loss raised AttributeError") from error


def test_an_error_of_a_rank_in_this_process_is_raised_as_it_was() -> None:
    async def main() -> None:
        runtime = InlineRuntime()
        try:
            ranks = RankWorkers(await runtime.start(Raising, [None], Placement()), runtime.clock, 1.0)
            with pytest.raises(PieceError, match=r"algorithm\.loss raised") as raised:
                await ranks.call("step", what="a step")
        finally:
            await runtime.close()
        seen: list[BaseException] = []
        error: Any = raised.value
        while error is not None and len(seen) < 10:
            seen.append(error)
            error = error.__cause__ or error.__context__
        assert [type(each) for each in seen] == [PieceError, AttributeError]

    asyncio.run(main())
