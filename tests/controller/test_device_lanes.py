"""Which thread a lane is on where models are on a device; what needs one is `make gpu-check`'s."""

import pytest
import torch

from headrace.controller.building.device_lanes import DeviceLanes

CUDA = torch.device("cuda")


def test_each_lane_has_a_thread_of_its_own() -> None:
    lanes = DeviceLanes(CUDA, threads=4)
    named = ("engine", "trainer", "reference", "weights", "journal", "record")
    assert [lanes.thread(lane, busy=named) for lane in named] == list(named)


def test_in_turns_all_that_compute_for_long_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    lanes = DeviceLanes(CUDA, threads=4, turns=True)
    long = ("engine", "trainer", "reference", "proximal", "teacher", "critic", "reward", "judge")
    assert len({lanes.thread(lane, busy=()) for lane in long}) == 1
    assert lanes.thread("journal", busy=()) == "journal"
