"""Which thread and stream a lane is on where models are on a device; what needs one is `make gpu-check`'s."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headrace.config import DPOConfig, EngineConfig, TrainConfig
from headrace.models.device_lanes import DeviceLanes
from headrace.offline.ranks.rank import OfflineRank, OfflineRankSpec
from headrace.roles.workers.engine import EngineSpec, EngineWorker, JudgeEngineWorker, LentEngineWorker
from headrace.roles.workers.frozen import FrozenSpec, ReferenceWorker
from headrace.roles.workers.reward import RewardSpec, RewardWorker
from headrace.roles.workers.trainer import CriticWorker, TrainerSpec, TrainerWorker

CUDA = torch.device("cuda")
LONG = ("engine", "trainer", "reference", "proximal", "teacher", "critic", "reward", "judge")


class Streams:
    """In the place of a device's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        """By the device that each is on."""
        self.priorities: list[int] = []
        self.seen: list[str] = []
        monkeypatch.setattr(torch.cuda, "Stream", self._make)
        monkeypatch.setattr(torch.cuda, "stream", self._on)

    def _make(self, device: torch.device, priority: int) -> Any:
        self.made.append(str(device))
        self.priorities.append(priority)
        number = len(self.made)
        return SimpleNamespace(number=number, synchronize=lambda: self.seen.append(f"{number} is waited for"))

    @contextmanager
    def _on(self, stream: Any) -> Iterator[None]:
        self.seen.append(f"on {stream.number}")
        yield


def test_each_lane_has_a_thread_of_its_own() -> None:
    lanes = DeviceLanes(CUDA, threads=4, wide=("trainer",))
    named = ("engine", "trainer", "reference", "weights", "journal", "record")
    assert [lanes.thread(lane, busy={}) for lane in named] == list(named)


def test_in_turns_all_that_compute_for_long_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    lanes = DeviceLanes(CUDA, threads=4, wide=("trainer",), turns=LONG)
    assert len({lanes.thread(lane, busy={}) for lane in LONG}) == 1
    assert lanes.thread("journal", busy={}) == "journal"


def test_each_lane_has_a_stream_of_its_own_which_a_call_ends_with(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(monkeypatch)
    lanes = DeviceLanes(torch.device("cuda:1"), threads=1, wide=())
    for lane in ("engine", "weights", "engine"):
        with lanes.around(lane):
            streams.seen.append(lane)
    assert streams.made == ["cuda:1", "cuda:1"]
    of_engine = ["on 1", "engine", "1 is waited for"]
    assert streams.seen == [*of_engine, "on 2", "weights", "2 is waited for", *of_engine]


def test_what_an_engine_computes_goes_before_what_a_trainer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device a lower number is a higher priority, of -5 to 0."""
    streams = Streams(monkeypatch)
    lanes = DeviceLanes(CUDA, threads=1, wide=())
    for lane in ("engine/1", "trainer", "reference"):
        with lanes.around(lane):
            pass
    of_engine, *others = streams.priorities
    assert of_engine < 0
    assert others == [0, 0]


def test_wide_lanes_alone_compute_with_the_threads_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    Streams(monkeypatch)
    before, found = torch.get_num_threads(), []
    try:
        lanes = DeviceLanes(CUDA, threads=3, wide=("trainer",))
        for lane in ("trainer", "trainer/1", "weights"):
            with lanes.around(lane):
                found.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(before)
    assert found == [3, 3, 1]


def trainer_spec(device: str, mode: str = "async") -> TrainerSpec:
    given = {"model": {"path": "none"}, "data": {"train": "none"}, "async": {"mode": mode}}
    config = TrainConfig.model_validate(given)
    return TrainerSpec(config, "", device, 1, False, "shm", "")


def offline_spec(device: str) -> OfflineRankSpec:
    given = {"model": {"path": "none"}, "data": {"train": "none"}, "trainer": {"layout": {"dp": 2}}}
    return OfflineRankSpec(DPOConfig.model_validate(given), device, 1)


OF_WORKERS: list[tuple[Any, Any]] = [
    (EngineWorker, lambda device: EngineSpec("", "float32", device, EngineConfig())),
    (LentEngineWorker, lambda device: EngineSpec("", "float32", device, EngineConfig())),
    (JudgeEngineWorker, lambda device: EngineSpec("", "float32", device, EngineConfig())),
    (ReferenceWorker, lambda device: FrozenSpec("", "float32", device, 1.0)),
    (RewardWorker, lambda device: RewardSpec("", "float32", device)),
    (TrainerWorker, trainer_spec),
    (CriticWorker, trainer_spec),
    (OfflineRank, offline_spec),
]


@pytest.mark.parametrize(("kind", "spec"), OF_WORKERS, ids=[kind.__name__ for kind, _ in OF_WORKERS])
def test_a_worker_in_a_process_of_its_own_has_such_lanes_where_its_device_is_one(
    monkeypatch: pytest.MonkeyPatch, kind: Any, spec: Any
) -> None:
    """On a CPU each lane is a thread, and nothing else."""
    streams, host = Streams(monkeypatch), SimpleNamespace(rank=0, threads=torch.get_num_threads())
    assert kind.lanes(spec("cpu"), host) is None
    lanes = kind.lanes(spec("cuda:1"), host)
    assert lanes.thread(kind.kind, busy={}) != lanes.thread("weights", busy={})
    with lanes.around(lanes.thread(kind.kind, busy={})):
        assert torch.get_num_threads() == host.threads
    assert streams.made == ["cuda:1"]


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_the_first_lanes_of_a_process_tell_torch_how_to_compute(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLAS looks once: a run that sums in one order may follow another in its process."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # and it is as it was afterwards
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    told: list[Any] = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", told.append)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", told.append)
    host: Any = SimpleNamespace(rank=0, threads=1)
    assert TrainerWorker.lanes(trainer_spec("cpu", mode), host) is None
    assert (told, "CUBLAS_WORKSPACE_CONFIG" in os.environ) == ([], False)
    TrainerWorker.lanes(trainer_spec("cuda", mode), host)
    assert (told, os.environ["CUBLAS_WORKSPACE_CONFIG"]) == (["highest", False], ":4096:8")
