"""Which process of vLLM takes what of a version, where there are several copies of the model (data parallel), and what
each tells.

vLLM itself is not there: of it are the names alone that the plugin imports."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar

import pytest
import torch
from transformers import Qwen3Config

from headrace.weights.disk import DiskPublisher
from headrace.weights.version import Version

NAME, USER = "headrace_vllm.transfer", "headrace_vllm.extension"
A, B = TypeVar("A"), TypeVar("B")
PROCESSES = [(copy, rank) for copy in range(2) for rank in range(2)]
"""Two copies of a model of two parts each."""


class OfVllm(Generic[A, B]):
    """The base of its engines of weights."""


@pytest.fixture
def transfer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    names = {
        "vllm": {},
        "vllm.distributed.weight_transfer.base": {"WeightTransferEngine": OfVllm},
        "vllm.logger": {"init_logger": lambda name: None},
        "vllm.model_executor.model_loader.reload": dict.fromkeys(
            ("finalize_layerwise_reload", "initialize_layerwise_reload")
        ),
    }
    for name, has in names.items():
        module = ModuleType(name)
        vars(module).update(has)
        monkeypatch.setitem(sys.modules, name, module)
    for name in (NAME, USER):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(NAME)
    for name in (NAME, USER):
        sys.modules.pop(name, None)


def process(transfer: Any, copy: int, rank: int) -> Any:
    """Of a dense model, whose copies vLLM tells that each is the only one."""
    made = object.__new__(transfer.HeadraceTransfer)
    made._group = None
    made.parallel_config = SimpleNamespace(data_parallel_index=copy, data_parallel_size=1, world_size=2, rank=rank)
    return made


def test_the_processes_of_each_copy_look_at_all_that_lies_on_disk(transfer: Any, tmp_path: Path) -> None:
    publisher = DiskPublisher(tmp_path)
    names = ("a", "b", "c", "d")
    publisher.send(publisher.snapshot(Version(0, 1), {name: torch.ones(2) for name in names}.items()))
    info = transfer.UpdateInfo("disk", publisher.address, 0, 1)
    file = tmp_path / "0-1" / "weights.safetensors"
    whole = file.read_bytes()
    begin = len(whole) - 8 * len(names)
    for tensor in range(len(names)):
        damaged = bytearray(whole)
        damaged[begin + 8 * tensor] ^= 1
        file.write_bytes(damaged)
        told = []
        for copy, rank in PROCESSES:
            try:
                process(transfer, copy, rank)._published(info)
            except transfer.PublicationError:
                told.append(copy)
        assert told == [0, 1], "one process of each copy"


def test_a_process_tells_how_many_api_processes_there_are(transfer: Any) -> None:
    extension = importlib.import_module(USER).Extension()
    told = {"max_model_len": 64, "dtype": "x", "logprobs_mode": "y", "max_logprobs": 20}
    scheduler = SimpleNamespace(stream_interval=1, max_num_seqs=8, policy="fcfs")
    extension.model_config = SimpleNamespace(
        **told, hf_text_config=Qwen3Config(), word_embeddings_untied_by_checkpoint=False
    )
    extension.parallel_config = SimpleNamespace(world_size=1, data_parallel_size=1, _api_process_count=4)
    extension.vllm_config = SimpleNamespace(scheduler_config=scheduler)
    assert extension.headrace()["api_processes"] == 4


def test_each_process_has_a_place_of_its_own_in_the_group(transfer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    came: list[tuple[Any, ...]] = []

    class Group:
        def __init__(self, *how: Any) -> None:
            came.append(how)

        def received(self, size: int, at_once: int) -> torch.Tensor:
            return torch.empty(size, dtype=torch.uint8)

    monkeypatch.setattr(transfer, "Group", Group)
    info = transfer.UpdateInfo("gloo", "10.0.0.1:7", 0, 1, at_once=64, ranks=4, seconds=9.0)
    for copy, rank in PROCESSES:
        process(transfer, copy, rank)._published(info)
    assert came == [("10.0.0.1:7", place, 5, 9.0) for place in (1, 2, 3, 4)], "behind the sender"
