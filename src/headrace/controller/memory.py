"""How much memory a run will take, worked out from shapes alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psutil

from headrace.config import TrainConfig
from headrace.engines.embedded.memory import kv_cache_bytes
from headrace.models.loading import count_parameters

GIB = 2**30
_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes by use. Activations are not in it: they follow `trainer.max_tokens_per_microbatch`."""

    parameters: int
    """Number of parameters, not bytes."""
    uses: dict[str, int]
    free: int
    """Of the host's memory, now."""

    @property
    def total(self) -> int:
        return sum(self.uses.values())


def estimate_memory(config: TrainConfig, model_config: Any, max_context: int) -> MemoryEstimate:
    """`model_config`: a Hugging Face config. Builds the model on no device, and loads nothing."""
    parameters = count_parameters(model_config)
    trainer_bytes = _BYTES[config.model.dtype]
    engine_bytes = _BYTES[config.engine.dtype or config.model.dtype]
    masters = 4 * parameters
    uses = {
        "trainer: float32 weights": masters,
        "trainer: gradients (float32)": masters,
        "trainer: AdamW moments (float32)": 2 * masters,
        "engine: weights": engine_bytes * parameters,
        "weight plane: newest version": trainer_bytes * parameters,
        "engine: next version while it is received": engine_bytes * parameters,
        "engine: KV cache": kv_cache_bytes(model_config, config.engine),
    }
    if config.model.dtype == "bfloat16":
        uses["trainer: bfloat16 weights"] = trainer_bytes * parameters
    return MemoryEstimate(parameters, uses, psutil.virtual_memory().available)
