"""A write of a part of a checkpoint that is cancelled has ended when that returns: whoever removes the folder then is
the last."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch

from headrace.roles.columns.frozen import OnLane
from headrace.roles.workers.frozen import FrozenSpec, ReferenceWorker
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.workers import Host, Placement, Workers
from headrace.training.protocol import Written
from headrace.training.rank import CHECKPOINTS, TRAINER_TYPES, TrainerRank
from headrace.training.rank_task import Task


class Model:
    """Whose copy is written in two parts: `begun` is after the first, and the second waits for `goes_on`."""

    peers = beside = None

    def __init__(self) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def logprobs(self, micro: object) -> torch.Tensor:
        raise AssertionError

    def saved(self, *, copies: bool) -> Model:
        return self

    def write(self, path: Path) -> Written:
        path.mkdir(parents=True)
        self.begun.set()
        assert self.goes_on.wait(10.0)
        (path / "weights").mkdir(parents=True)
        return Written(0, 0)


class Writes(Protocol):
    """What all of them have, as one is asked."""

    async def take_state(self, copies: bool) -> None: ...
    async def write_state(self, path: Path) -> object: ...


class Asked:
    def __init__(self, workers: Workers[Any]) -> None:
        self._workers = workers

    async def take_state(self, copies: bool) -> None:
        await self._workers.call("take_state", copies, what="a copy")

    async def write_state(self, path: Path) -> object:
        return await self._workers.call("write_state", str(path), what="files")


async def trained(runtime: InlineRuntime, model: Any) -> Writes:
    class Trained(TrainerRank):
        kind = "trained"
        types = TRAINER_TYPES

        def __init__(self, spec: None, host: Host) -> None:
            super().__init__(model, host, Task((), {}), device=torch.device("cpu"))

    return Asked(await runtime.start(Trained, [None], Placement()))


async def scores(runtime: InlineRuntime, model: Any) -> Writes:
    return Asked(await runtime.start(ReferenceWorker, [FrozenSpec("", "float32", "cpu", 1.0)], Placement()))


async def here(runtime: InlineRuntime, model: Any) -> Writes:
    on_lane = OnLane(model, "reference", runtime)

    class Here:
        async def take_state(self, copies: bool) -> None:
            await on_lane.take_state(copies=copies)

        write_state = staticmethod(on_lane.write_state)

    return Here()


@pytest.mark.parametrize("of", [trained, scores, here])
def test_a_write_that_is_cancelled_is_waited_for_and_one_that_has_not_begun_never_does(
    of: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model()
    for name in ("load_causal_lm", "FrozenScorer"):
        monkeypatch.setattr(f"headrace.roles.workers.frozen.{name}", lambda *_, **__: model)

    async def main() -> None:
        runtime = InlineRuntime()
        try:
            part: Writes = await of(runtime, model)
            await part.take_state(True)
            writing = asyncio.ensure_future(part.write_state(tmp_path / "begun"))
            await asyncio.to_thread(model.begun.wait, 10.0)
            await part.take_state(True)
            waiting = asyncio.ensure_future(part.write_state(tmp_path / "waits"))
            await asyncio.sleep(0.05)
            for each in (waiting, writing):
                each.cancel()
            await asyncio.wait([waiting], timeout=5.0)
            assert waiting.cancelled()
            await asyncio.sleep(0.05)
            assert not writing.done(), "its thread writes still"
            model.goes_on.set()
            await asyncio.wait([writing], timeout=5.0)
            assert writing.cancelled()
            assert (tmp_path / "begun" / "weights").is_dir()
            await runtime.compute(CHECKPOINTS, lambda: None)
            assert not (tmp_path / "waits").exists()
        finally:
            model.goes_on.set()
            await runtime.close()

    asyncio.run(main())
