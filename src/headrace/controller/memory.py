"""How much memory a run will take, worked out from shapes alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psutil
import torch

from headrace.algorithms.kept_sets import most_bytes
from headrace.config import EngineConfig, TrainConfig
from headrace.controller.judges import own_judges
from headrace.engines.embedded.memory import CachePlan, plan_cache
from headrace.models.loading import count_parameters, read_model_config

GIB, MIB = 2**30, 2**20
_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes by use. Activations are not in it: they follow `trainer.max_tokens_per_microbatch`."""

    parameters: int
    """Number of parameters, not bytes."""
    uses: dict[str, int]
    place: str
    """Whose memory it is: `this host`, or a device."""
    free: int
    """There, now."""
    slots: int
    """Sequences that the engine will decode together, as far as can be said now."""

    @property
    def total(self) -> int:
        return sum(self.uses.values())


def estimate_memory(config: TrainConfig, model_config: Any, device: torch.device) -> MemoryEstimate:
    """`model_config`: a Hugging Face config. Builds the model on no device, and loads nothing.

    Raises ConfigError if the KV cache does not fit.
    """
    parameters = count_parameters(model_config)
    trainer_bytes = _BYTES[config.model.dtype]
    engine_dtype = config.engine.dtype or config.model.dtype
    engine_bytes = _BYTES[engine_dtype]
    masters = 4 * parameters
    cache = plan_kv_cache(model_config, config.engine, engine_dtype, device)
    uses = {
        "trainer: float32 weights": masters,
        "trainer: gradients (float32)": masters,
        "trainer: AdamW moments (float32)": 2 * masters,
        "engine: weights": engine_bytes * parameters,
        "engine: next version while it is received": engine_bytes * parameters,
        "engine: KV cache": cache.bytes_wanted,
    }
    if config.model.dtype == "bfloat16":
        uses["trainer: bfloat16 weights"] = trainer_bytes * parameters
    if config.weights.transport == "memory":
        uses["weight plane: newest version"] = trainer_bytes * parameters
    if config.rollout.sampling.truncates:
        uses["experience table: kept sets, at most"] = _kept_sets(
            config, cache, int(model_config.get_text_config().vocab_size)
        )
    algorithm = config.algorithm
    if algorithm.needs_reference:
        uses["reference: weights"] = trainer_bytes * parameters
    if config.copies_proximal:
        uses["proximal: weights"] = trainer_bytes * parameters
    if algorithm.needs_teacher:
        uses["teacher: weights, if it is as large as the policy"] = trainer_bytes * parameters
    if algorithm.needs_critic:
        uses["critic: weights, gradients and moments (float32)"] = 4 * masters
    if config.reward.model.path is not None:
        scored = count_parameters(read_model_config(config.reward.model.path))
        uses["reward model: weights"] = trainer_bytes * scored
    for judge in own_judges(config.reward):
        asked, dtype = read_model_config(judge.path), judge.engine.dtype or config.model.dtype
        uses[f"judge {judge.path}: weights"] = _BYTES[dtype] * count_parameters(asked)
        uses[f"judge {judge.path}: KV cache"] = plan_kv_cache(asked, judge.engine, dtype, device).bytes_wanted
    place = "this host" if device.type == "cpu" else str(device)
    return MemoryEstimate(parameters, uses, place, free_bytes(device), cache.slots)


def _kept_sets(config: TrainConfig, cache: CachePlan, vocab_size: int) -> int:
    """Bytes of the kept sets of as many groups as the table holds, each sample as long and each set as large as it can
    be."""
    rollout, longest = config.rollout, cache.max_context
    if rollout.workflow in ("single_turn", "multi_turn"):
        turns = rollout.max_turns if rollout.workflow == "multi_turn" else 1
        longest = min(longest, turns * rollout.sampling.max_new_tokens)
    samples = config.table_groups(cache.slots) * rollout.samples_per_prompt
    return samples * longest * most_bytes(vocab_size, rollout.sampling.top_k)


def plan_kv_cache(model_config: Any, engine_config: EngineConfig, dtype: str, device: torch.device) -> CachePlan:
    """The cache that an embedded engine with weights of `dtype` will have on `device`. Raises ConfigError."""
    # On a CPU the engine keeps it in float32, whatever the weights are.
    kept = torch.float32 if device.type == "cpu" else getattr(torch, dtype)
    return plan_cache(model_config, engine_config, kept, free_bytes(device))


def free_bytes(device: torch.device) -> int:
    """Free memory now: of the device, or of the host for the CPU."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)
