"""The KV caches of a run's engines, in what else there is leaves of a machine's or a device's memory."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
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
_NO_BOUND = 1 << 62
"""Bytes: more than any machine has."""


def engine_dtype(config: TrainConfig) -> str:
    return config.engine.dtype or config.model.dtype


def cache_of(section: EngineSection, config: TrainConfig, first: CachePlan) -> CachePlan:
    """Of an engine of this section, beside those of the first section, whose cache is `first`: each sequence has as
    much."""
    asked, slots = config.engine.max_concurrent_sequences, section.max_concurrent_sequences
    if slots == asked:
        return first
    fit = max(1, first.slots * slots // asked)
    if first.pages is None:
        return in_slots(fit, first.max_context, first.slot_bytes)
    pages = max(first.pages * slots // asked, pages_for(first.max_context))
    return in_pages(fit, first.max_context, pages, first.page_bytes)


def caches_bytes(config: TrainConfig, first: CachePlan) -> int:
    """Of all engines but those that are lent, beside those of the first section, whose cache is `first`."""
    return sum(each.count * cache_of(each, config, first).bytes_wanted for each in config.engine.sections)


def as_many_as_first(config: TrainConfig) -> int:
    """How many engines of the first section have as many sequences as all engines, lent ones included; rounded up."""
    engine = config.engine
    every = sum(each.count * each.max_concurrent_sequences for each in engine.sections)
    return engine.lent + -(-every // engine.max_concurrent_sequences)


def cache_beside(
    config: TrainConfig, model_config: Any, place: torch.device, free: int, uses: dict[str, int]
) -> CachePlan:
    """The KV cache of each engine of the first section in what `uses` leave of a device to all of them. Raises
    ConfigError if they leave none."""
    room, times = int((1 - SPARE) * free), beside_caches(config, uses)
    left = room - max(sum(there.values()) for there, _ in times)
    dtype, paged = getattr(torch, engine_dtype(config)), is_paged(place, model_config)

    def within(budget: int) -> CachePlan:
        given = config.engine.model_copy(update={"kv_cache_gib": budget / GIB})
        return plan_cache(model_config, given, dtype, max(budget, left), paged=paged)

    def needed(first: CachePlan) -> tuple[int, dict[str, int]]:
        """At once, caches included, and what else there is then."""
        caches = caches_bytes(config, first)
        each = ((sum(there.values()) + caches + lent * first.bytes_wanted, there) for there, lent in times)
        return max(each, key=lambda time: time[0])

    least = cache_shape(model_config).full_bytes(1, context_limit(model_config, config.engine), dtype, paged=paged)
    if config.engine.kv_cache_gib is not None:
        least = int(config.engine.kv_cache_gib * GIB)
    smallest = within(least)
    size, uses = needed(replace(smallest, bytes_wanted=least))  # all that kv_cache_gib lets it take
    if size > room:
        lower = what_to_lower(config, on_device=True)
        largest = sorted(uses.items(), key=lambda use: -use[1])[:MOST_TOLD]
        raise ConfigError(
            f"this run needs {in_gib(size)} on {place}, the least of KV cache included, and {in_gib(free)} are free "
            "there, of which a twentieth is kept back: "
            + ", ".join(f"{use} {in_gib(each)}" for use, each in largest)
            + f", {KV_CACHE} {in_gib(size - sum(uses.values()))}; {lower}, free memory there, or take a smaller model"
        )
    if config.engine.kv_cache_gib is not None:
        return smallest
    budgets = range(least, left + 1)
    return within(budgets[bisect_right(budgets, room, key=lambda budget: needed(within(budget))[0]) - 1])


def plan_kv_cache(
    model_config: Any,
    engine_config: EngineConfig,
    dtype: str,
    device: torch.device,
    share: int = 1,
    *,
    elsewhere: bool = False,
) -> CachePlan:
    """The cache that each of `share` embedded engines with weights of `dtype` will have on `device` where nothing else
    is; all that is asked for where that is `elsewhere`, and nobody here knows what is free. Raises ConfigError."""
    # On a CPU the engine keeps it in float32, whatever the weights are.
    kept = torch.float32 if device.type == "cpu" else getattr(torch, dtype)
    free = _NO_BOUND if elsewhere else free_memory.free_bytes(device) // share
    return plan_cache(model_config, engine_config, kept, free, paged=is_paged(device, model_config))
