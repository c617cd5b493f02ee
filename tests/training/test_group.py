"""What a rank raises reaches who asked as it was raised, and the chain of errors has an end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from headrace.algorithms.pieces import PieceError
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Host, Placement, WorkerLost
from headrace.training.group import TrainerGroup
from headrace.training.layouts.ranks import Layout
from headrace.training.pieces import Piece
from headrace.training.protocol import CheckpointError, Written
from headrace.training.rank import TRAINER_TYPES, Task, TrainerRank
from headrace.training.rank_workers import RankWorkers
from headrace.weights.shm import ShmPublisher
from headrace.weights.version import Version


class Saving:
    kind: ClassVar[str] = "saving"
    types: ClassVar[WireTypes] = WireTypes({"written": Written})

    def __init__(self, spec: int, host: object) -> None:
        self._count = spec

    def take_state(self, copies: bool) -> None:
        pass

    async def write_state(self, path: str) -> Written:
        (Path(path) / "saved").touch()
        return Written(self._count, 5)


async def saved(group: TrainerGroup, path: Path) -> None:
    await group.take_state(copies=True)
    await group.write_state(path)


def test_parts_that_do_not_add_up_to_the_model_are_no_checkpoint(tmp_path: Path) -> None:
    async def main() -> None:
        runtime = InlineRuntime()
        try:
            for counts in ([3, 2], [3, 1]):
                workers = await runtime.start(Saving, counts, Placement())
                group = TrainerGroup("trainer", RankWorkers(workers, runtime.clock, 1.0, Layout(dp=2, zero=2)))
                if sum(counts) == 5:
                    await saved(group, tmp_path)
                    continue
                with pytest.raises(CheckpointError, match=r"ranks wrote 4 bytes of weights into .*, which has 5"):
                    await saved(group, tmp_path)
        finally:
            await runtime.close()

    asyncio.run(main())


def test_the_first_that_is_left_saves_and_where_none_is_the_loss_is_raised(tmp_path: Path) -> None:
    async def main() -> None:
        runtime = InlineRuntime()
        try:
            workers = await runtime.start(Saving, [5, 5], Placement())
            group = TrainerGroup("trainer", RankWorkers(workers, runtime.clock, 1.0, Layout(dp=2)))
            await workers.kill(0, "on purpose")
            await saved(group, tmp_path)
            (tmp_path / "saved").unlink()
            await workers.kill(1, "on purpose, too")
            with pytest.raises(WorkerLost, match="saving/0 is lost: on purpose"):
                await saved(group, tmp_path)
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


class Half:
    """What `TrainerRank` asks of a trainer that has some rows of a matrix, [4, 2] float32."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.weights = torch.arange(8.0).view(4, 2)[2 * rank : 2 * rank + 2].clone()

    def join(self, *meeting: object) -> None:
        pass

    def outlines(self) -> dict[str, torch.Tensor]:
        return {"w": torch.empty(4, 2, dtype=torch.bfloat16, device="meta")}

    def pieces(self) -> Iterator[tuple[str, Piece]]:
        yield "w", Piece(self.weights, (4, 2), (2 * self.rank, 0))


class Halving(TrainerRank):
    kind: ClassVar[str] = "trainer"
    types: ClassVar[WireTypes] = TRAINER_TYPES

    def __init__(self, folder: str, host: Host) -> None:
        self.half = Half(host.rank)
        plane, aside = (ShmPublisher(Path(folder) / name) for name in ("plane", "aside"))
        super().__init__(self.half, host, Task((), {}), plane=plane, aside=lambda: aside, by_parts=True)  # type: ignore[arg-type]

    def train(self) -> None:
        self.half.weights += 10


def test_ranks_publish_what_each_has_for_all_and_for_one_receiver_alone(tmp_path: Path) -> None:
    async def main() -> None:
        runtime = InlineRuntime()
        for name in ("plane", "aside"):
            (tmp_path / name).mkdir()
        try:
            workers = await runtime.start(Halving, [str(tmp_path)] * 2, Placement())
            ranks = RankWorkers(workers, runtime.clock, 1.0, Layout(dp=2, zero=2))
            group = await TrainerGroup.of("trainer", ranks)
            await ranks.each("come_together", {rank: (rank, 0, 1.0, True) for rank in (0, 1)}, what="a group")
            whole = torch.arange(8.0).view(4, 2)
            for number in (1, 2):
                await group.snapshot(Version(0, number))
                assert group.receiver().latest() == (None if number == 1 else Version(0, 1)), "not before all is there"
                await ranks.each("train", {0: (), 1: ()}, what="a step")
                aside = await group.show_aside(Version(0, number))
                assert aside.receive()[1]["w"].float().equal(whole + 10 * number)
                await group.end_aside()
                assert (await group.send()).size == 16
                _, tensors = group.receiver().receive()
                assert tensors["w"].dtype == torch.bfloat16
                assert tensors["w"].float().equal(whole + 10 * (number - 1))
        finally:
            await runtime.close()

    asyncio.run(main())
