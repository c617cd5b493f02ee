"""The KV caches of a run's engines, in what else there is leaves of a machine's or a device's memory."""

from __future__ import annotations

from typing import Any

import torch

from headrace.config import ConfigError, EngineConfig, TrainConfig
from headrace.config.model import EngineSection
from headrace.controller.planning import free_memory
from headrace.controller.planning.free_memory import GIB, SPARE, in_gib
from headrace.controller.planning.memory_by_turns import beside_caches
from headrace.controller.planning.out_of_memory import what_to_lower
from headrace.engines.embedded.cache_plan import (
    CachePlan,
    cache_shape,
    context_limit,
    in_pages,
    in_slots,
    is_paged,
    plan_cache,
)
from headrace.engines.embedded.pages import pages_for

KV_CACHE = "engine: KV cache"
MOST_TOLD = 4
"""Uses that an error names."""


def engine_dtype(config: TrainConfig) -> str:
    return config.engine.dtype or config.model.dtype


def cache_of(section: EngineSection, config: TrainConfig, first: CachePlan) -> CachePlan:
    """Of an engine of this section, beside those of the first section, whose cache is `first`: each sequence has as
    much."""
    asked, slots = config.engine.max_concurrent_sequences, section.max_concurrent_sequences
    if slots == asked:
        return first
    slots = max(1, first.slots * slots // asked)
    if first.pages is None:
        return in_slots(slots, first.max_context, first.slot_bytes)
    pages = max(first.pages * slots // first.slots, pages_for(first.max_context))
    return in_pages(slots, first.max_context, pages, first.page_bytes)


def cache_beside(
    config: TrainConfig, model_config: Any, place: torch.device, free: int, uses: dict[str, int]
) -> CachePlan:
    """The KV cache of each engine in what `uses` leave of a device. Raises ConfigError if they leave none."""
    room = int((1 - SPARE) * free)
    left, uses, engines = min(
        (((room - sum(there.values())) // count, there, count) for there, count in beside_caches(config, uses)),
        key=lambda time: time[0],
    )
    dtype = getattr(torch, engine_dtype(config))
    paged = is_paged(place, model_config)
    wanted = cache_shape(model_config).least_bytes(context_limit(model_config, config.engine), dtype, paged=paged)
    if config.engine.kv_cache_gib is not None:
        wanted = int(config.engine.kv_cache_gib * GIB)
    caches = engines * wanted
    if wanted > left:
        lower = what_to_lower(config, on_device=True)
        largest = sorted(uses.items(), key=lambda use: -use[1])[:MOST_TOLD]
        raise ConfigError(
            f"this run needs {in_gib(sum(uses.values()) + caches)} on {place}, the least of KV cache included, and "
            f"{in_gib(free)} are free there, of which a twentieth is kept back: "
            + ", ".join(f"{use} {in_gib(size)}" for use, size in largest)
            + f", {KV_CACHE} {in_gib(caches)}; {lower}, free memory there, or take a smaller model"
        )
    budget = left if config.engine.kv_cache_gib is None else wanted
    given = config.engine.model_copy(update={"kv_cache_gib": budget / GIB})
    return plan_cache(model_config, given, dtype, left, paged=paged)


def plan_kv_cache(
    model_config: Any, engine_config: EngineConfig, dtype: str, device: torch.device, share: int = 1
) -> CachePlan:
    """The cache that each of `share` embedded engines with weights of `dtype` will have on `device` where nothing else
    is. Raises ConfigError."""
    # On a CPU the engine keeps it in float32, whatever the weights are.
    kept = torch.float32 if device.type == "cpu" else getattr(torch, dtype)
    return plan_cache(
        model_config, engine_config, kept, free_memory.free_bytes(device) // share, paged=is_paged(device, model_config)
    )
