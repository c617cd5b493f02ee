"""What the policy's embedded engines have on a device beside weights and KV cache."""

from __future__ import annotations

from typing import Any

import torch

from headrace.config import TrainConfig
from headrace.config.values.dtypes import ITEM_BYTES
from headrace.controller.planning.activations import (
    DecoderShape,
    checked_bytes,
    engine_bytes,
    graphs_bytes,
    waiting_kept_bytes,
)
from headrace.controller.planning.cache_memory import engine_dtype
from headrace.controller.planning.memory_by_turns import OF_LENT
from headrace.controller.planning.transports import transport_of
from headrace.engines.embedded.cache_plan import cache_shape, context_limit, is_paged
from headrace.weights.swap_check import SHORT, check_tokens


def engine_uses(config: TrainConfig, model_config: Any, device: torch.device) -> dict[str, int]:
    """Bytes by use, of all together. `model_config`: the policy's Hugging Face config."""
    engine, uses = config.engine, dict[str, int]()
    kinds = [("engine: ", each.count, each.max_concurrent_sequences) for each in engine.sections]
    for kind, count, slots in (*kinds, (OF_LENT, engine.lent, engine.max_concurrent_sequences)):
        for use, size in _of_slots(config, model_config, slots).items() if count else ():
            uses[f"{kind}{use}"] = uses.get(f"{kind}{use}", 0) + count * size
    embedded = sum(each.count for each in engine.sections if not each.is_server)
    takes_copies = transport_of(config, device) != "memory" or engine_dtype(config) != config.model.dtype
    # Engines that are colocated or lent wake by taking a version: their caches come behind the check.
    if embedded and takes_copies and not engine.colocated:
        uses["engine: swap check"] = embedded * _swap_check(config, model_config, device)
    return uses


def _of_slots(config: TrainConfig, model_config: Any, slots: int) -> dict[str, int]:
    """Of each engine with so many."""
    shape, context = DecoderShape.of(model_config), context_limit(model_config, config.engine)
    prefilled, itemsize = config.engine.prefill_tokens_per_step, ITEM_BYTES[engine_dtype(config)]
    found = {
        "activations and logits": engine_bytes(shape, slots, prefilled, itemsize, context),
        "CUDA graphs": graphs_bytes(shape, slots, context),
    }
    if config.truncates:
        most_kept = min(config.most_kept or shape.vocabulary, shape.vocabulary)
        found["kept sets that wait"] = waiting_kept_bytes(slots, most_kept)
    return found


def _swap_check(config: TrainConfig, model_config: Any, device: torch.device) -> int:
    """Of the decode steps by which each looks at a version, beside those that it serves by, and of their cache."""
    shape, dtype = DecoderShape.of(model_config), getattr(torch, engine_dtype(config))
    longest = context_limit(model_config, config.engine) - 1 if config.engine.has_server else SHORT
    samples, length = check_tokens(shape.vocabulary, longest).shape
    cache = cache_shape(model_config).full_bytes(samples, length, dtype, paged=is_paged(device, model_config))
    return cache + checked_bytes(shape, samples, dtype.itemsize)
