"""What a checkpoint holds is of one moment, between two batches, and training goes on while it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.controller import checkpointer
from headrace.controller.checkpointer import Checkpointer
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.workers import WorkerLost
from headrace.store import DiskFull, RunStore
from headrace.store.media.files import Digest, digest_of
from headrace.weights.version import Version


class Trainer:
    """A `Part` whose state is a number. It writes when it may."""

    def __init__(self) -> None:
        self.state = 0
        self.may_write = asyncio.Event()
        self.fails: Exception | None = None
        self._taken: list[int] = []

    async def take_state(self, *, copies: bool) -> None:
        self._taken.append(self.state)

    async def write_state(self, path: Path) -> dict[str, Digest]:
        path.mkdir(exist_ok=True)
        await self.may_write.wait()
        if self.fails is not None:
            raise self.fails
        (path / "state").write_text(str(self._taken.pop(0)))
        return {"state": digest_of(path / "state")}

    async def load(self, path: Path) -> None:
        raise AssertionError("nothing is restored")


class House:
    def __init__(self, folder: Path, **more: Any) -> None:
        self.store = RunStore.create(folder, config_yaml="", config_sha256="x", now=0.0)
        self.trainer, self.kl = Trainer(), {"kl_coefficient": 1.0}
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.ended = 0
        self.checkpointer = Checkpointer(
            self.store,
            self.trainer,
            InlineRuntime(),
            state=lambda: dict(self.kl),
            committed=0,
            report=lambda kind, data: self.events.append((kind, data)),
            **more,
        )
        self.checkpointer.when_failed(self._failed)

    def _failed(self) -> None:
        self.ended += 1

    def train(self, number: int) -> Version:
        """Version `number` is made."""
        self.trainer.state, self.kl["kl_coefficient"] = number, float(number)
        self.checkpointer.trained()
        return Version(0, number)


def in_house(folder: Path, see: Callable[[House], Awaitable[None]], **more: Any) -> None:
    async def main() -> None:
        house = House(folder, **more)
        try:
            await see(house)
        finally:
            await house.checkpointer._runtime.close()
            house.store.close()

    asyncio.run(main())


def restored(folder: Path) -> tuple[int, dict[str, Any], str]:
    store = RunStore.open(folder, config_sha256="x")
    found = store.checkpoints.restore()
    store.close()
    return found.number, found.state, "" if found.path is None else (found.path / "state").read_text()


def test_what_is_committed_is_of_the_moment_of_the_copy_and_not_of_the_commit(tmp_path: Path) -> None:
    async def see(house: House) -> None:
        await house.checkpointer.after(house.train(1))  # returns, though nothing may be written
        house.kl["kl_coefficient"] = 9.0  # advantages of the next batch
        house.train(2)
        assert house.checkpointer.committed == 0
        house.trainer.may_write.set()
        await house.checkpointer.settled()
        assert house.checkpointer.committed == 1
        ((kind, told),) = house.events
        assert (kind, told["version"]) == ("checkpoint", "v1")
        assert 0 <= told["behind_s"] <= told["waited_s"] <= told["took_s"]

    in_house(tmp_path / "run", see, every=1)
    assert restored(tmp_path / "run") == (1, {"kl_coefficient": 1.0}, "1")


def test_the_next_one_waits_for_the_one_that_is_being_written(tmp_path: Path) -> None:
    async def see(house: House) -> None:
        await house.checkpointer.after(house.train(1))
        second = asyncio.create_task(house.checkpointer.after(house.train(2)))
        await asyncio.sleep(0)
        assert not second.done()
        house.trainer.may_write.set()
        await second
        await house.checkpointer.commit(Version(0, 2))  # there already: it is waited for
        assert [told["version"] for _, told in house.events] == ["v1", "v2"]
        assert house.events[1][1]["behind_s"] > 0

    in_house(tmp_path / "run", see, every=1)
    assert restored(tmp_path / "run")[::2] == (2, "2")


def test_without_a_copy_training_waits(tmp_path: Path) -> None:
    async def see(house: House) -> None:
        house.trainer.may_write.set()
        await house.checkpointer.after(house.train(1))
        assert house.checkpointer.committed == 1
        ((_, told),) = house.events
        assert told["waited_s"] == pytest.approx(told["took_s"] + told["behind_s"], abs=1e-5)

    in_house(tmp_path / "run", see, every=1, background=False)


def test_one_that_a_rank_dies_of_is_not_committed_and_the_next_one_is_begun_anew(tmp_path: Path) -> None:
    async def see(house: House) -> None:
        house.trainer.fails = WorkerLost(0, "on purpose", worker="trainer/0")
        house.trainer.may_write.set()
        await house.checkpointer.after(house.train(2))
        with pytest.raises(WorkerLost, match="trainer/0 is lost: on purpose"):
            await house.checkpointer.settled()
        assert house.ended == 1, "whoever trains is told at once"
        await house.checkpointer.forget()
        assert house.checkpointer.committed == 0
        assert not [*(tmp_path / "run" / "checkpoints").iterdir()]
        house.trainer.fails = None
        house.checkpointer.go_back(house.store.checkpoints.restore())
        await house.checkpointer.after(house.train(2))
        await house.checkpointer.settled()
        assert house.checkpointer.committed == 2

    in_house(tmp_path / "run", see, every=2)


def test_that_the_last_one_was_not_written_is_told_where_the_run_ends_with_another_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def see(house: House) -> None:
        house.trainer.fails = OSError(28, "no space left on device")
        await house.checkpointer.after(house.train(1))
        house.trainer.may_write.set()
        await house.checkpointer.close()
        (record,) = caplog.records
        assert record.getMessage().startswith("checkpoint 1 was not written: no space left while writing")

    in_house(tmp_path / "run", see, every=1)


def test_a_disk_that_is_full_is_told_to_whoever_comes_next_and_nothing_is_left(tmp_path: Path) -> None:
    async def see(house: House) -> None:
        house.trainer.fails = OSError(28, "no space left on device")
        house.trainer.may_write.set()
        await house.checkpointer.after(house.train(1))
        for _ in range(2):
            with pytest.raises(DiskFull):
                await house.checkpointer.after(house.train(2))
        with pytest.raises(DiskFull):
            await house.checkpointer.forget()
        assert not [*(tmp_path / "run" / "checkpoints").iterdir()]

    in_house(tmp_path / "run", see, every=1)
    assert restored(tmp_path / "run")[0] == 0


def test_one_that_takes_too_long_is_told_as_that_and_its_end_is_waited_for(tmp_path: Path) -> None:
    async def see(house: House) -> None:
        ended = list[str]()

        async def writes_on(path: Path) -> dict[str, Digest]:
            work = asyncio.ensure_future(asyncio.sleep(0.15))
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:
                await work
                ended.append("its work")
                raise
            raise AssertionError("nobody has told it to end")

        house.trainer.write_state = writes_on  # type: ignore[method-assign]

        async def commit() -> None:
            try:
                await house.checkpointer.commit(house.train(1))
            finally:
                await house.checkpointer.close()

        with pytest.raises(WaitTimeout, match="checkpoint 1 to be written"):
            await commit()
        assert ended == ["its work"]
        assert house.checkpointer.committed == 0

    in_house(tmp_path / "run", see, every=1, timeout_s=0.1)


def test_one_that_does_not_even_end_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointer, "_END_S", 0.05)

    async def see(house: House) -> None:
        may_end = asyncio.Event()

        async def writes_on(path: Path) -> dict[str, Digest]:
            while not may_end.is_set():
                with suppress(asyncio.CancelledError):
                    await may_end.wait()
            raise OSError("the disk is gone")

        house.trainer.write_state = writes_on  # type: ignore[method-assign]
        await house.checkpointer.after(house.train(1))
        with pytest.raises(WaitTimeout, match="checkpoint 1 to be written"):
            await house.checkpointer.settled()
        await house.checkpointer.close()
        may_end.set()

    in_house(tmp_path / "run", see, every=1, timeout_s=0.1)
