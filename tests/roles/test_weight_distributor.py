"""A version's journey goes on beside the trainer, and what arrives is what the trainer had when the copy was taken."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from held import ask
from torch import Tensor
from training_helpers import make_rows, make_trainer

from headrace.models.packing import pack
from headrace.observe.spent import Activity
from headrace.roles.context import RoleContext
from headrace.roles.weight_distributor import WeightDistributor
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.signal import Signal
from headrace.store import DiskFull
from headrace.store.errors import disk_full
from headrace.training.group import TrainerGroup
from headrace.training.outgoing_weights import OutgoingWeights
from headrace.training.rank import TrainerRank
from headrace.training.rank_task import Task
from headrace.training.rank_workers import RankHere
from headrace.weights.disk import DiskPublisher
from headrace.weights.in_process import MemoryPublisher
from headrace.weights.plane import Manifest, Snapshot, WeightError, WeightPublisher
from headrace.weights.shm import ShmPublisher
from headrace.weights.version import Version


@pytest.fixture(params=["memory", "disk", "shm"])
def publisher(request: pytest.FixtureRequest, tmp_path: Path) -> WeightPublisher:
    (tmp_path / "weights").mkdir()
    made: dict[str, Callable[[], WeightPublisher]] = {
        "memory": MemoryPublisher,
        "disk": lambda: DiskPublisher(tmp_path / "weights"),
        "shm": lambda: ShmPublisher(tmp_path / "weights"),
    }
    return made[request.param]()


class OneTensor:
    def __init__(self) -> None:
        self.weight = torch.zeros(4)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield "weight", self.weight


class House:
    """A trainer, of one tensor unless given, on a lane."""

    def __init__(self, publisher: WeightPublisher, trainer: Any = None) -> None:
        self.runtime = InlineRuntime()
        self.published, self.failures = Signal(), 0
        self.events: list[tuple[str, dict[str, Any]]] = []
        context = RoleContext(
            self.runtime, cast(Any, None), cast(Any, None), cast(Any, SimpleNamespace()),
            lambda kind, data: self.events.append((kind, data)), 20.0, activity=Activity(),
        )  # fmt: skip
        trainer = trainer or OneTensor()
        self.weight: Any = getattr(trainer, "weight", None)
        weights = OutgoingWeights(trainer, self.runtime, plane=publisher)
        rank = TrainerRank(trainer, self.runtime, Task((), {}), weights=weights, device=torch.device("cpu"))
        receiver = None if publisher.transport == "memory" else (publisher.transport, publisher.address)
        group = TrainerGroup("trainer", RankHere(rank, self.runtime, "trainer"), receiver=receiver)
        self.distributor = WeightDistributor(context, group, self.published, self._failed)

    def _failed(self) -> None:
        self.failures += 1

    async def compute(self, function: Callable[..., Any], *args: Any) -> Any:
        return await self.runtime.compute("trainer", function, *args)

    async def publish(self, number: int) -> None:
        await self.distributor.publish(Version(0, number), ask)


def test_the_trainer_steps_while_the_version_travels_and_what_arrives_is_the_copy(publisher: WeightPublisher) -> None:
    begun, go_on = threading.Event(), threading.Event()
    send = publisher.send

    def slow(snapshot: Snapshot) -> Manifest:
        begun.set()
        assert go_on.wait(20)
        return send(snapshot)

    cast(Any, publisher).send = slow

    async def main() -> None:
        house = House(publisher)
        receiver = publisher.receiver()
        try:
            go_on.set()
            await house.publish(0)
            await house.distributor.settled()
            go_on.clear()
            begun.clear()
            house.weight.fill_(1.0)
            await house.publish(1)
            await house.compute(house.weight.fill_, 7.0)  # as a step does, or a hybrid reference
            assert await asyncio.to_thread(begun.wait, 20), "the version travels meanwhile"
            assert receiver.latest() == Version(0, 0)
            assert receiver.receive()[1]["weight"].tolist() == [0.0] * 4, "the one before is there until it is whole"
            later = asyncio.create_task(house.publish(2))
            await asyncio.sleep(0.05)
            assert not later.done(), "one journey at a time"
            go_on.set()
            await later
            await house.distributor.settled()
            assert receiver.receive()[1]["weight"].tolist() == [7.0] * 4
        finally:
            go_on.set()
            await house.runtime.close()

    asyncio.run(main())


def test_each_version_arrives_as_it_was_copied(publisher: WeightPublisher) -> None:
    async def main() -> None:
        house = House(publisher)
        try:
            for number in range(5):
                house.weight.fill_(float(number))
                await house.publish(number)
                house.weight.fill_(-1.0)
                await house.distributor.settled()
                manifest, tensors = publisher.receiver().receive()
                assert manifest.version == Version(0, number)
                assert tensors["weight"].tolist() == [float(number)] * 4
        finally:
            await house.runtime.close()

    asyncio.run(main())


def test_by_what_and_how_fast_a_version_left_is_told(publisher: WeightPublisher) -> None:
    """But for one that left by a pointer. The one tensor has 4 numbers of 4 bytes."""

    async def main() -> None:
        house = House(publisher)
        try:
            for number in range(2):
                await house.publish(number)
            await house.distributor.settled()
        finally:
            await house.runtime.close()
        if publisher.transport == "memory":
            assert house.events == []
            return
        assert [(kind, told["version"], told["transport"], told["bytes"]) for kind, told in house.events] == [
            ("weights_sent", f"v{number}", publisher.transport, 16) for number in range(2)
        ]
        for _, told in house.events:
            assert told["seconds"] > 0
            assert told["bytes_per_s"] == pytest.approx(16 / told["seconds"], rel=0.02)

    asyncio.run(main())


def test_a_hybrid_reference_and_a_step_meanwhile_change_nothing_of_what_arrives(publisher: WeightPublisher) -> None:
    trainer = make_trainer()
    trainer.keep_reference()
    micro = pack(make_rows([5, 7]))
    trainer.accumulate(micro)
    trainer.step()
    go_on, send = threading.Event(), publisher.send

    def slow(snapshot: Snapshot) -> Manifest:
        assert go_on.wait(20)
        return send(snapshot)

    cast(Any, publisher).send = slow

    async def main() -> None:
        house = House(publisher, trainer)
        try:
            wanted = {name: tensor.clone() for name, tensor in trainer.tensors()}
            await house.distributor.publish(Version(0, 1), ask)
            await house.compute(trainer.reference_logprobs, micro)
            await house.compute(trainer.accumulate, micro)
            await house.compute(trainer.step)
            go_on.set()
            await house.distributor.settled()
            _, tensors = publisher.receiver().receive()
            assert tensors.keys() == wanted.keys()
            assert all(torch.equal(tensors[name], tensor) for name, tensor in wanted.items())
            now = dict(trainer.tensors())
            assert not all(torch.equal(now[name], tensor) for name, tensor in wanted.items()), "the step was one"
        finally:
            go_on.set()
            await house.runtime.close()

    asyncio.run(main())


@pytest.mark.parametrize("error", [disk_full(Path("run.db")), WeightError("its device is gone")])
def test_of_a_version_that_is_taken_back_only_a_record_that_failed_is_raised(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def main() -> None:
        house = House(MemoryPublisher())

        async def send() -> Any:
            raise error

        house.distributor._source.send = send  # type: ignore[method-assign]
        try:
            await house.publish(3)
            if isinstance(error, WeightError):
                await house.distributor.forget()
                told = "the journey of v3, which was taken back, did not arrive: its device is gone"
                assert told in [record.getMessage() for record in caplog.records]
            else:
                with pytest.raises(DiskFull):
                    await house.distributor.forget()
            await house.distributor.settled()
        finally:
            await house.runtime.close()

    asyncio.run(main())


def test_a_journey_that_fails_is_told_at_once_and_raised_by_the_next(tmp_path: Path) -> None:
    class Full(MemoryPublisher):
        def send(self, snapshot: Snapshot) -> Manifest:
            raise WeightError("the disk is full")

    async def main() -> None:
        house = House(Full())
        try:
            await house.publish(0)
            for _ in range(200):
                if house.failures:
                    break
                await asyncio.sleep(0.01)
            assert house.failures == 1
            with pytest.raises(WeightError, match="the disk is full"):
                await house.publish(1)
            with pytest.raises(WeightError, match="the disk is full"):
                await house.distributor.settled()
        finally:
            await house.runtime.close()

    asyncio.run(main())
