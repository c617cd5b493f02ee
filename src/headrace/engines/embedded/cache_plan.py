"""How many sequences fit, worked out from the shapes alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import psutil
import torch

from headrace.config import ConfigError, EngineConfig
from headrace.engines.embedded.pages import PAGE_TOKENS, pages_for
from headrace.engines.embedded.plain_decoder import is_plain_decoder
from headrace.models.experts import routed_bytes
from headrace.models.rope_reach import reach_of

GIB = 2**30
_SHARE_OF_FREE = 0.5
HAS_TRITON = find_spec("triton") is not None
SPARE_PAGES = 2
"""That no sequence has: one of zeros, and one for what padding rows write."""
SPARE_SLOTS = 1
"""That no sequence has, where there are no pages: to move sequences by, and for what padding rows write."""


@dataclass(frozen=True, slots=True)
class CachePlan:
    """Size of the KV cache."""

    slots: int
    """Sequences that are decoded together."""
    max_context: int
    """Tokens of the longest sequence, prompt and response."""
    bytes_wanted: int
    """When every slot is full, or all pages are there; what is spare included."""
    pages: int | None = None
    """That the slots share, on a device; None: each slot has room of its own."""

    @property
    def page_bytes(self) -> int:
        """Of one page; `bytes_wanted` is told."""
        assert self.pages is not None, "it has no pages"
        return self.bytes_wanted // (self.pages + SPARE_PAGES)

    @property
    def slot_bytes(self) -> int:
        """Of one slot that is full; `bytes_wanted` is told."""
        assert self.pages is None, "it has pages"
        return self.bytes_wanted // (self.slots + SPARE_SLOTS)

    def of_size(self, slots: int, context: int) -> CachePlan:
        """Of so many full slots, like this one: in pages or not. What it wants is not told."""
        pages = None if self.pages is None else slots * pages_for(context)
        return CachePlan(slots, context, 0, pages)


@dataclass(frozen=True, slots=True)
class CacheRoom:
    """What there is for the KV cache of an engine on a device that others cannot ask about."""

    share: float
    """Of all the device's memory: what the engine, and whoever is on it beside it, may have."""
    beside: int
    """Bytes that these take but for KV caches."""
    caches: int = 1
    """That the rest is shared out to."""

    def left(self, total: int) -> int:
        """Bytes for each cache, of `total` of the device."""
        return (int(self.share * total) - self.beside) // self.caches

    def plan(
        self, model_config: Any, engine_config: EngineConfig, dtype: torch.dtype, total: int, *, paged: bool
    ) -> CachePlan:
        """As `plan_cache`, of a device of `total` bytes. Raises ConfigError."""
        left, context = self.left(total), context_limit(model_config, engine_config)
        if engine_config.kv_cache_gib is None:
            if left < (least := cache_shape(model_config).full_bytes(1, context, dtype, paged=paged)):
                raise ConfigError(
                    f"one sequence of {context} tokens takes {least} bytes of KV cache, and of the {total} bytes of "
                    f"its device {max(left, 0)} are left beside {self.beside} for all else that is to be there; lower "
                    "engine.max_context or engine.max_concurrent_sequences, or give it a larger device or a larger part"
                )
            engine_config = engine_config.model_copy(update={"kv_cache_gib": left / GIB})
        return plan_cache(model_config, engine_config, dtype, max(left, 0), paged=paged)


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

    def full_bytes(self, slots: int, context: int, dtype: torch.dtype, *, paged: bool) -> int:
        """Of a cache for so many sequences of `context` tokens, what is spare included."""
        in_whole_pages = (slots * pages_for(context) + SPARE_PAGES) * PAGE_TOKENS
        return (in_whole_pages if paged else (slots + SPARE_SLOTS) * context) * self.bytes_per_token(dtype)


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
    """Longest prompt + response in tokens. Raises ConfigError if more is asked for than the model has places, or so
    many that it is another one for some."""
    places: Any = getattr(model_config.get_text_config(), "max_position_embeddings", None)
    wanted = engine_config.max_context
    if wanted is None and places is None:
        raise ConfigError("the model's config.json has no max_position_embeddings: set engine.max_context")
    if wanted is not None and places is not None and wanted > places:
        raise ConfigError(
            f"engine.max_context is {wanted}, but the model has {places} positions; "
            f"set engine.max_context to {places} or less"
        )
    context = int(places if wanted is None else wanted)
    reach = reach_of(model_config)
    if reach is not None and context > reach.positions:
        whose = "" if wanted is not None else ", the model's own limit"
        raise ConfigError(
            f"engine.max_context is {context}{whose}, and the model's {reach.words}; set engine.max_context to "
            f"{reach.positions} or less"
        )
    return context


def is_paged(device: torch.device, model_config: Any) -> bool:
    """Whether the KV cache is in pages there: on a device, where Triton is, for models whose attention kernels of
    Headrace compute, which read pages. Other attention wants the keys of a sequence in one piece."""
    return device.type != "cpu" and HAS_TRITON and is_plain_decoder(model_config)


def plan_cache(
    model_config: Any,
    engine_config: EngineConfig,
    dtype: torch.dtype,
    free_bytes: int | None = None,
    *,
    paged: bool = False,
) -> CachePlan:
    """As many slots as were asked for, or as fit the memory; `paged`, as many pages as they can fill, or as fit. Raises
    ConfigError if not even one sequence fits.

    `free_bytes` is of the device that holds the cache; the host's free memory unless given.
    """
    context, shape = context_limit(model_config, engine_config), cache_shape(model_config)
    least, page = shape.full_bytes(1, context, dtype, paged=paged), PAGE_TOKENS * shape.bytes_per_token(dtype)
    free = psutil.virtual_memory().available if free_bytes is None else free_bytes
    if engine_config.kv_cache_gib is not None:
        budget = int(engine_config.kv_cache_gib * GIB)
        if budget > free:
            raise ConfigError(
                f"engine.kv_cache_gib is {engine_config.kv_cache_gib:g} ({budget} bytes), but {free} bytes are free; "
                f"set engine.kv_cache_gib to {_SHARE_OF_FREE * free / GIB:.2f} or less, or free memory"
            )
        if budget < least:
            raise ConfigError(
                f"one sequence of {context} tokens takes {least} bytes of KV cache, and engine.kv_cache_gib gives "
                f"{budget} ({free} bytes are free); raise engine.kv_cache_gib to {_gib(least)} or lower "
                "engine.max_context"
            )
    else:
        budget = int(_SHARE_OF_FREE * free)
        if budget < least:
            fits = max(budget // page - SPARE_PAGES, 0) * PAGE_TOKENS if paged else budget * context // least
            raise ConfigError(
                f"one sequence of {context} tokens takes {least} bytes of KV cache, and half of the {free} bytes "
                f"free is {budget}; {f'set engine.max_context to {fits} or less, or ' if fits else ''}free memory"
            )
    asked = engine_config.max_concurrent_sequences
    if not paged:
        one = context * shape.bytes_per_token(dtype)
        return in_slots(min(asked, budget // one - SPARE_SLOTS), context, one)
    fitting = budget // page - SPARE_PAGES
    slots = min(asked, fitting)
    return in_pages(slots, context, min(fitting, slots * pages_for(context)), page)


def in_slots(slots: int, context: int, slot_bytes: int) -> CachePlan:
    return CachePlan(slots, context, (slots + SPARE_SLOTS) * slot_bytes)


def in_pages(slots: int, context: int, pages: int, page_bytes: int) -> CachePlan:
    return CachePlan(slots, context, (pages + SPARE_PAGES) * page_bytes, pages)


def _gib(size: int) -> str:
    """At least `size` bytes, in GiB of three digits."""
    digits = 2 - math.floor(math.log10(size / GIB))
    return f"{math.ceil(size / GIB * 10**digits) / 10**digits:g}"
