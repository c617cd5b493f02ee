"""How many sequences fit, worked out from the shapes alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from headrace.config import ConfigError, EngineConfig
from headrace.models.experts import routed_bytes

GIB = 2**30
_SHARE_OF_FREE = 0.5


@dataclass(frozen=True, slots=True)
class CachePlan:
    """Size of the KV cache."""

    slots: int
    """Sequences that are decoded together."""
    max_context: int
    """Tokens of the longest sequence, prompt and response."""
    bytes_wanted: int
    """When every slot is full."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Of the keys (and of the values) of one token."""

    layers: int
    heads: int
    head_dim: int
    routed: int = 0
    """Bytes that which experts it was routed to takes, where that is recorded."""

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        return 2 * self.layers * self.heads * self.head_dim * dtype.itemsize + self.routed


def cache_shape(model_config: Any) -> CacheShape:
    """From a Hugging Face config. Raises ConfigError for an architecture without attention, or with other heads in each
    layer."""
    text = model_config.get_text_config()
    heads = getattr(text, "num_attention_heads", None)
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    if not isinstance(heads, int) or not isinstance(kv_heads, int):
        raise ConfigError(
            "the embedded engine keeps keys and values of the same attention heads in every layer, and a model of type "
            f"{text.model_type!r} has none such; use another architecture"
        )
    return CacheShape(
        layers=text.num_hidden_layers,
        heads=kv_heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        routed=routed_bytes(model_config),
    )


def context_limit(model_config: Any, engine_config: EngineConfig) -> int:
    """Longest prompt + response in tokens. Raises ConfigError if more is asked for than the model has places."""
    places = getattr(model_config.get_text_config(), "max_position_embeddings", None)
    wanted = engine_config.max_context
    if wanted is None:
        if places is None:
            raise ConfigError("the model's config.json has no max_position_embeddings: set engine.max_context")
        return int(places)
    if places is not None and wanted > places:
        raise ConfigError(
            f"engine.max_context is {wanted}, but the model has {places} positions; "
            f"set engine.max_context to {places} or less"
        )
    return wanted


def plan_cache(
    model_config: Any, engine_config: EngineConfig, dtype: torch.dtype, free_bytes: int | None = None
) -> CachePlan:
    """As many slots as were asked for, or as fit the memory. Raises ConfigError if not even one fits.

    `free_bytes` is of the device that holds the cache; the host's free memory unless given.
    """
    context = context_limit(model_config, engine_config)
    per_slot = context * cache_shape(model_config).bytes_per_token(dtype)
    free = psutil.virtual_memory().available if free_bytes is None else free_bytes
    if engine_config.kv_cache_gib is not None:
        budget = int(engine_config.kv_cache_gib * GIB)
        if budget > free:
            raise ConfigError(
                f"engine.kv_cache_gib is {engine_config.kv_cache_gib:g} ({budget} bytes), but {free} bytes are free; "
                f"set engine.kv_cache_gib to {_SHARE_OF_FREE * free / GIB:.2f} or less, or free memory"
            )
        if budget < per_slot:
            raise ConfigError(
                f"one sequence of {context} tokens takes {per_slot} bytes of KV cache, and engine.kv_cache_gib gives "
                f"{budget} ({free} bytes are free); raise engine.kv_cache_gib to {_gib(per_slot)} or lower "
                "engine.max_context"
            )
    else:
        budget = int(_SHARE_OF_FREE * free)
        if budget < per_slot:
            fits = budget * context // per_slot
            raise ConfigError(
                f"one sequence of {context} tokens takes {per_slot} bytes of KV cache, and half of the {free} bytes "
                f"free is {budget}; set engine.max_context to {fits} or less, or free memory"
            )
    slots = min(engine_config.max_concurrent_sequences, budget // per_slot)
    return CachePlan(slots, context, slots * per_slot)


def _gib(size: int) -> str:
    """At least `size` bytes, in GiB of three digits."""
    digits = 2 - math.floor(math.log10(size / GIB))
    return f"{math.ceil(size / GIB * 10**digits) / 10**digits:g}"


def kv_cache_bytes(model_config: Any, engine_config: EngineConfig, dtype: torch.dtype = torch.float32) -> int:
    """Bytes of the KV cache when every slot is full. Needs no weights. Raises ConfigError as `plan_cache`.

    `dtype`: on a CPU the cache is float32 whatever the weights are.
    """
    return plan_cache(model_config, engine_config, dtype).bytes_wanted
