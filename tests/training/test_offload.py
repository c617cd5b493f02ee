"""Masters and moments in the host's memory: the same steps, and what a device no longer holds."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from devices import CPU, CUDA
from marked import said
from training_helpers import CONFIGS
from transformers import AutoModelForCausalLM

from headrace.config.trainer import OptimizerConfig, TrainerConfig
from headrace.models.packing import MicroBatch, PackRow, pack
from headrace.runtime.progress import rest
from headrace.training.optimizer.adamw import FlatAdamW
from headrace.training.optimizer.flat_buffers import FlatParameters
from headrace.training.optimizer.offloaded import OffloadedAdamW
from headrace.training.protocol import LossTerms
from headrace.training.trainer import HFTrainer

ON_CUDA = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
DEVICES = [pytest.param(CPU, marks=pytest.mark.cpu), pytest.param(CUDA, marks=ON_CUDA)]
SETTINGS = OptimizerConfig(lr=0.1, weight_decay=0.2)


def model(device: torch.device) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3)).to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunk", [16, 33, 1 << 20])
def test_steps_in_chunks_are_the_steps_of_the_whole(device: torch.device, dtype: torch.dtype, chunk: int) -> None:
    usual, apart = FlatParameters(model(device), dtype), FlatParameters(model(device), dtype, offload=True)
    one, other = FlatAdamW(usual, SETTINGS), OffloadedAdamW(apart, SETTINGS, chunk=chunk)
    assert apart.master.device == other.exp_avg.device == CPU
    for number in range(3):
        grads = torch.randn(len(usual.grads), generator=torch.Generator().manual_seed(number))
        usual.grads.copy_(grads)
        apart.grads.copy_(grads)
        one.update(0.1)
        usual.publish()
        other.update(0.1)
    assert one.updates == other.updates == 3
    for ours, theirs in ((apart.master, usual.master), (other.exp_avg_sq, one.exp_avg_sq)):
        torch.testing.assert_close(ours, theirs.cpu(), rtol=1e-5, atol=1e-6)
    assert torch.equal(apart.compute.cpu(), apart.master.to(dtype))


def test_the_count_of_updates_goes_on_where_it_was() -> None:
    """Of a first step the bias corrections make lr times the gradient's sign, of a hundredth with no moments less."""
    flat = FlatParameters(model(CPU), torch.float32, offload=True)
    optimizer = OffloadedAdamW(flat, OptimizerConfig(lr=0.1), chunk=16)
    optimizer.updates = 99
    before = flat.master.clone()
    flat.grads.fill_(2.0)
    optimizer.update(0.1)
    first, second = 0.1 / (1 - 0.9**100), 0.001 / (1 - 0.999**100)
    wanted = 0.1 * first / second**0.5
    moved = (before - flat.master)[: 5 * 7]
    torch.testing.assert_close(moved, torch.full_like(moved, wanted), rtol=1e-4, atol=0)


def _nll(logprobs: torch.Tensor, micro: MicroBatch) -> LossTerms:
    return LossTerms(-(logprobs * micro.mask).sum(), micro.mask.sum())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_trainer_that_offloads_makes_the_same_steps_in_less_memory(dtype: torch.dtype) -> None:
    import numpy as np

    found, held = [], []
    micro = pack([PackRow(np.arange(1, 30) % 23, np.arange(29) > 0)])
    for offload in (False, False, True):  # what stays of the first, as workspaces of matrix products, is the device's
        torch.manual_seed(0)
        config = copy.deepcopy(CONFIGS["qwen3"])
        before = torch.cuda.memory_allocated()
        trainer = HFTrainer(
            AutoModelForCausalLM.from_config(config, dtype=torch.float32).cuda(),
            config=TrainerConfig(optimizer=OptimizerConfig(lr=1e-3, offload=offload)),
            loss=_nll,
            total_steps=4,
            dtype=dtype,
        )
        for _ in range(3):
            trainer.accumulate(micro)
            trainer.step()
        torch.cuda.synchronize()
        found.append({name: tensor.float().cpu().clone() for name, tensor in trainer.tensors()})
        held.append(torch.cuda.memory_allocated() - before)
        del trainer
        gc.collect()
        torch.cuda.empty_cache()
    for name, tensor in found[1].items():
        torch.testing.assert_close(found[2][name], tensor, rtol=0, atol=1e-5 if dtype is torch.float32 else 1e-2)
    assert held[2] < 0.72 * held[1]


def test_each_chunk_of_a_step_is_told() -> None:
    flat = FlatParameters(model(CPU), torch.float32, offload=True)
    optimizer, chunks = OffloadedAdamW(flat, SETTINGS, chunk=16), [flat.decayed, len(flat.master) - flat.decayed]
    with said() as stepped:
        optimizer.update(0.1)
        rest()
    assert stepped.units == ["chunk"] * sum(-(-numbers // 16) for numbers in chunks)
