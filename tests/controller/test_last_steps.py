"""How a run ends whose last steps fail as well: it has its status, and the user hears what ended it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from simulated_jobs import job

from headrace.config import SFTConfig
from headrace.controller import train as controller
from headrace.controller.simulation.hazards import Hazards, TrainingFaults
from headrace.controller.simulation.outside import Costs, SimulatedOutside
from headrace.controller.simulation.plan import simulated_plan
from headrace.controller.simulation.simulated_rollouts import RolloutFaults
from headrace.controller.simulation.simulated_run import FOLDER
from headrace.controller.stopping import StopRequest
from headrace.observe.last_steps import LastSteps
from headrace.offline.recorder import recording
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.runtime.workers import WorkerError
from headrace.store import OfflineStore, RunReader, RunStore
from headrace.store.errors import disk_full
from headrace.store.media.lock import RunLock
from headrace.store.media.memory_files import MemoryFiles


class NoModels(SimulatedOutside):
    async def models(self, plan: Any, runtime: Any, folder: Path) -> Any:
        raise ValueError("the model has no layers")


def run(files: MemoryFiles, kind: type[SimulatedOutside] = NoModels) -> str:
    """Its status."""
    config = job(runtime__trace=True, trainer__batches=1)
    plan = simulated_plan(config, prompts=100, slots=16, max_context=1_000, vocab_size=50)

    async def main(runtime: VirtualRuntime) -> None:
        files.make_folder(FOLDER)
        hazards = Hazards(TrainingFaults())
        outside = kind(runtime, files, Costs(), {}, RolloutFaults(), hazards, is_on=lambda: True)
        await controller.train(plan, FOLDER, "new", stop=StopRequest(signals=()), outside=outside)

    run_virtually(main)
    return status(files)


def status(files: MemoryFiles) -> str:
    with RunReader(FOLDER, files) as reader:
        return reader.status().name


def full(*args: Any) -> None:
    raise disk_full(FOLDER)


def full_behind_the_start(store: Any, status: str) -> None:
    if status != "running":
        full()


async def lost(self: Any) -> None:
    raise WorkerError(0, "OSError", "its socket is gone", worker="engine/0")


def test_workers_and_a_trace_that_fail_at_the_end_leave_the_status_and_the_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(VirtualRuntime, "close", lost)
    monkeypatch.setattr(controller, "write_trace", full)
    files = MemoryFiles()
    with caplog.at_level(logging.WARNING), pytest.raises(ValueError, match="the model has no layers"):
        run(files)
    assert status(files) == "failed"
    workers, trace = [record.message for record in caplog.records if record.name == "headrace.observe.last_steps"]
    assert workers == "at the run's end, the end of its workers: engine/0: OSError: its socket is gone"
    assert trace.startswith("at the run's end, trace.json: no space left while writing /run")


def test_a_trace_that_cannot_be_written_is_the_error_of_a_run_that_had_none(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    monkeypatch.setattr(controller, "write_trace", full)
    monkeypatch.setattr(RunStore, "close", lambda self, own=RunStore.close: (closed.append(1), own(self)))
    files = MemoryFiles()
    with pytest.raises(type(disk_full(FOLDER))):
        run(files, SimulatedOutside)
    assert (status(files), closed) == ("finished", [1])


def test_a_full_disk_before_the_run_begins_hides_nothing_and_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def origin(*args: Any) -> Any:
        raise ValueError("the origin has no weights")

    closed = []
    monkeypatch.setattr(controller, "with_own_origin", origin)
    monkeypatch.setattr(RunStore, "set_status", full_behind_the_start)
    monkeypatch.setattr(RunStore, "close", lambda self, own=RunStore.close: (closed.append(1), own(self)))
    with pytest.raises(ValueError, match="the origin has no weights"):
        run(MemoryFiles())
    assert closed == [1]


class View:
    is_open = False

    def open(self) -> None:
        self.is_open = True

    def show(self, run: object) -> None:
        pass

    def close(self) -> None:
        self.is_open = False


@pytest.mark.parametrize("fails", [True, False])
def test_a_full_disk_leaves_the_view_of_an_offline_trainer_closed_and_its_error_told(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SFTConfig.model_validate({"model": {"path": "m"}, "data": {"train": "d"}, "trainer": {"steps": 1}})
    monkeypatch.setattr(OfflineStore, "set_status", full_behind_the_start)
    view = View()
    error: type[Exception] = ValueError if fails else type(disk_full(FOLDER))

    def offline() -> None:
        with recording(config, RunLock(tmp_path), view, done=0) as recorder:
            if fails:
                raise ValueError("the loss is not finite")
            recorder.end("finished")

    with pytest.raises(error):
        offline()
    assert not view.is_open


def test_what_breaks_a_step_off_is_raised_once_all_were_tried() -> None:
    last, tried = LastSteps(ValueError("the loss is not finite")), []
    with last.step("its status"):
        raise KeyboardInterrupt
    with last.step("the end of its workers"):
        tried.append("workers")
    with pytest.raises(KeyboardInterrupt):
        last.done()
    assert tried == ["workers"]
