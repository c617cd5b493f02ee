"""By which way weights leave: what both ends have decides."""

from __future__ import annotations

import pytest
import torch

from headrace.config import ConfigError, TrainConfig
from headrace.controller.planning.transports import transport_of

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")


def config(**sections: object) -> TrainConfig:
    base = {"model": {"path": "m"}, "data": {"train": "t.jsonl"}, "reward": {"function": "r.py:score"}}
    return TrainConfig.model_validate({**base, **sections})


APART = {"process": True}


@pytest.mark.parametrize(
    ("sections", "on_cpu", "on_cuda"),
    [
        ({}, "memory", "memory"),
        ({"engine": APART}, "shm", "cuda_ipc"),
        ({"trainer": {"placement": "process"}}, "shm", "cuda_ipc"),
        ({"engine": APART, "weights": {"transport": "shm"}}, "shm", "shm"),
        ({"engine": APART, "weights": {"transport": "disk"}}, "disk", "disk"),
        ({"engine": {"kind": "vllm"}}, "shm", "shm"),
        ({"engine": APART, "runtime": {"kind": "ray"}}, "shm", "shm"),
        ({"trainer": {"placement": "process", "layout": "d2"}}, "shm", "cuda_ipc"),
        ({"trainer": {"placement": "process", "layout": "t2"}}, "shm", "shm"),
    ],
)
def test_the_fastest_way_that_both_ends_have(sections: dict[str, object], on_cpu: str, on_cuda: str) -> None:
    assert transport_of(config(**sections), CPU) == on_cpu
    assert transport_of(config(**sections), CUDA) == on_cuda


def test_cuda_ipc_is_not_for_ranks_that_have_a_part_each() -> None:
    made = config(trainer={"placement": "process", "layout": {"dp": 2, "zero": 3}}, weights={"transport": "cuda_ipc"})
    with pytest.raises(ConfigError, match=r"cuda_ipc, and trainer\.layout is d2, ZeRO-3, whose ranks have parts .*shm"):
        transport_of(made, CUDA)


def test_cuda_ipc_is_for_models_of_processes_on_a_cuda_device() -> None:
    asked = {"weights": {"transport": "cuda_ipc"}}
    with pytest.raises(ConfigError, match=r"cuda_ipc, which is for models on a CUDA device, and these are on cpu; use"):
        transport_of(config(engine=APART, **asked), CPU)
    with pytest.raises(ValueError, match="cuda_ipc, which is for models in processes of their own"):
        config(**asked)
    with pytest.raises(ValueError, match="cuda_ipc, and an engine is a server, which takes weights by shm, disk or"):
        config(engine={"kind": "vllm"}, **asked)
