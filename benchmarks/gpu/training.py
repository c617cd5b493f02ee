"""The trainer at real sizes: its rate, the height of its memory beside what `check` says, and its log-probs beside the
engine's."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.shapes import Served, free_memory, parameters, random_model, random_tokens
from headrace.config import EngineConfig, TrainConfig
from headrace.config.trainer import OptimizerConfig, TrainerConfig
from headrace.controller.planning.activations import DecoderShape, trained_bytes
from headrace.models.packing import MicroBatch, PackRow, pack
from headrace.training.protocol import LossTerms
from headrace.training.trainer import HFTrainer

_CONFIG = TrainConfig.model_validate({"model": {"path": "none"}, "data": {"train": "none"}})


def _nll(logprobs: torch.Tensor, micro: MicroBatch) -> LossTerms:
    return LossTerms(-logprobs.sum(), micro.mask.sum())


def training_row(
    shape: str,
    tokens: int,
    length: int,
    rate: float,
    runs: int,
    dtype: torch.dtype = torch.bfloat16,
    ck: bool = False,
    offload: bool = False,
) -> dict[str, Any]:
    """One micro-batch of `tokens` in samples of `length`, and a step. Of its operations, 6 a weight and token are
    counted, and the output layer's."""
    model = random_model(shape, torch.float32)
    count, config = parameters(model), model.config
    optimizer = OptimizerConfig(offload=offload)
    trainer = HFTrainer(
        model,
        config=TrainerConfig(optimizer=optimizer),
        loss=_nll,
        total_steps=runs + 1,
        dtype=dtype,
        gradient_checkpointing=ck,
    )
    del model
    micro = pack([PackRow(row, np.arange(length) > 0) for row in random_tokens(tokens // length, length)])
    free_memory()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(runs + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        trainer.accumulate(micro)
        torch.cuda.synchronize()
        between = time.perf_counter()
        trainer.step()
        torch.cuda.synchronize()
        seconds.append((between - began, time.perf_counter() - between))
    peak = torch.cuda.max_memory_allocated() - held
    del trainer
    free_memory()
    passes, steps = (statistics.median(column) for column in zip(*seconds[1:], strict=True))
    return {
        "shape": shape,
        "dtype": str(dtype),
        "checkpointing": ck,
        "offload": offload,
        "tokens": tokens,
        "sample": length,
        "pass_s": passes,
        "step_s": steps,
        "tokens_per_s": tokens / passes,
        "share_of_matrix_rate": 6 * count * tokens / passes / rate,
        "activations_gib": peak / 2**30,
        "activations_planned_gib": trained_bytes(DecoderShape.of(config), tokens, dtype.itemsize, checkpointing=ck)
        / 2**30,
        "held_bytes_a_parameter": held / count,
    }


def logprob_row(shape: str, dtype: torch.dtype, before: int) -> dict[str, Any]:
    """Greatest and mean |trainer - engine| over 64 tokens that the engine sampled, behind `before` of a prompt."""
    own = Served(random_model(shape, dtype), EngineConfig(max_concurrent_sequences=64, max_context=before + 192))
    prompts = random_tokens(64, before)
    _, chunks = own.generate(prompts, 64)
    own.close()
    trainer = HFTrainer(
        random_model(shape, torch.float32), config=_CONFIG.trainer, loss=_nll, total_steps=1, dtype=dtype
    )
    length, gaps = before + 64, []
    for prompt, chunk in zip(prompts, chunks, strict=True):
        row = PackRow(np.concatenate([prompt, chunk.tokens]), np.arange(length) >= before)
        gaps.append(np.abs(trainer.logprobs(pack([row])).view(length)[before:].cpu().numpy() - chunk.logprobs))
    del trainer
    free_memory()
    gap = np.concatenate(gaps)
    return {"shape": shape, "dtype": str(dtype), "before": before, "max": float(gap.max()), "mean": float(gap.mean())}
