"""Choosing a runner, and checking at load time that it computes what the Hugging Face model computes."""

from __future__ import annotations

import logging
import math
from inspect import signature
from typing import Any

import torch

from headrace.config.values.dtypes import dtype_name
from headrace.engines.embedded.cache import KeyValueCache
from headrace.engines.embedded.paged_cache import PagedCache
from headrace.engines.embedded.runners.fused_runner import FusedRunner
from headrace.engines.embedded.runners.generic_runner import GenericRunner
from headrace.engines.embedded.runners.runner import ChunkBatch, Runner
from headrace.engines.protocol import EngineError
from headrace.models.attention import KNOWN_LAYERS
from headrace.models.memory_errors import memory_cause
from headrace.models.routing import Recorded, attach_routing

logger = logging.getLogger(__name__)
_ROWS, _LENGTH, _STEPS, _LAG = 2, 11, 5, 2
"""Sequences that runners are compared on, their tokens, those of them that are decoded, and by how many tokens each is
behind the one before: with rows of one length a model that attends to keys of other places would not be found out."""
_PAGES = 2
"""Where keys and values are in pages, so many pages of tokens come before those, as far as there is room."""
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


def choose_runner(model: Any, cache: KeyValueCache) -> Runner:
    """The fused runner where it agrees with the model, else the generic one. Raises EngineError if neither does, if the
    model has layers whose mask neither makes, or if it computes nothing that could be compared; what says that there is
    no memory, which says nothing of a runner. The cache is zero again afterwards."""
    rows, length = _size(cache)
    cache.hold(rows, length)
    try:
        return _choose(model, cache, _probe_tokens(model, rows, length))
    finally:
        cache.let_go(rows, length)


def _choose(model: Any, cache: KeyValueCache, tokens: torch.Tensor) -> Runner:
    tolerance = _TOLERANCE[model.dtype]
    chosen = Recorded()
    routing: dict[str, Any] = {"routing": chosen} if attach_routing(model) else {}
    if "logits_to_keep" in signature(model.forward).parameters:  # those of all tokens would take too much room
        routing |= {"logits_to_keep": _STEPS + _LAG}
    expected = model(input_ids=tokens, use_cache=False, **routing).logits[:, -_STEPS - _LAG :].float()
    if not torch.isfinite(expected[:, -1]).all(dim=-1).any():
        raise EngineError(
            f"{type(model).__name__} computes logits that are not finite, whatever it is given: what it computes "
            f"overflows {dtype_name(model.dtype)}; look at its weights and its config.json"
            + (", or use dtype float32" if model.dtype is not torch.float32 else "")
        )
    if (own := _with_own_kernels(model, cache, tokens, expected, tolerance)) is not None:
        return own
    fused = FusedRunner.of(model, cache)
    if fused is not None and _error(fused, tokens, expected, tolerance) <= 1.0:
        return fused
    if others := sorted({*(getattr(model.config.get_text_config(), "layer_types", None) or ())} - KNOWN_LAYERS):
        raise EngineError(
            f"{type(model).__name__} has layers of {', '.join(others)}, and the embedded engine does not know which "
            "keys those attend to; use plain or sliding-window attention"
        )
    try:
        generic = GenericRunner(model, cache)
        experts = chosen.found()
        if experts is not None:  # which of two experts is the better one may be a matter of rounding
            generic.route(experts.view(*tokens.shape, *experts.shape[1:]))
        error = _error(generic, tokens, expected, tolerance)
        generic.route(None)
    except (TypeError, AttributeError, IndexError, RuntimeError) as cause:
        if memory_cause(cause) is not None:
            raise
        raise EngineError(
            f"{type(model).__name__} does not run over the KV cache of the embedded engine ({cause}); "
            "use an architecture whose attention goes through transformers' Cache and AttentionInterface"
        ) from cause
    if error > 1.0:
        raise EngineError(
            f"over the KV cache of the embedded engine {type(model).__name__} computes other logits than its own "
            f"forward pass ({error:.1f} times the tolerance); use plain or sliding-window attention"
        )
    return generic


def _with_own_kernels(
    model: Any, cache: KeyValueCache, tokens: torch.Tensor, expected: torch.Tensor, tolerance: float
) -> FusedRunner | None:
    """On a CUDA device where Triton is, and compiles them, and they agree."""
    if model.device.type != "cuda":
        return None
    try:
        from headrace.engines.embedded.runners.triton_operations import TritonOperations

        fused = FusedRunner.of(model, cache, TritonOperations)
        if fused is None:
            return None
        error = _error(fused, tokens, expected, tolerance)
        if error <= 1.0:
            return fused
        what = f"their logits are {error:.1f} times the tolerance away from the model's"
    except Exception as cause:  # whatever a compiler may say
        if memory_cause(cause) is not None:
            raise
        what = f"{type(cause).__name__}: {cause}"
    logger.warning("the engine computes with torch's kernels, not with its own for CUDA: %s", what)
    return None


def _size(cache: KeyValueCache) -> tuple[int, int]:
    """Rows, and their length, that the runners are compared with over a cache where nobody is."""
    rows, length = min(_ROWS, cache.slots), _LENGTH
    if isinstance(cache, PagedCache):
        rows = min(rows, cache.pages.free)
        length = min(length + _PAGES * cache.page_tokens, cache.pages.free // rows * cache.page_tokens)
    return rows, min(length, cache.max_context)


def _probe_tokens(model: Any, rows: int, length: int) -> torch.Tensor:
    """Int64 [rows, length] of arbitrary but fixed tokens, few in a row and others in the next: one that is not finite
    spoils all behind it."""
    numbers = _LENGTH * torch.arange(rows)[:, None] + torch.arange(length) % _LENGTH
    return ((numbers * 7919 + 13) % model.config.get_text_config().vocab_size).to(model.device)


def _error(runner: Runner, tokens: torch.Tensor, expected: torch.Tensor, tolerance: float) -> float:
    """Greatest deviation of the logits of tokens that are decoded, in units of what is allowed, over the places where
    they are expected to be finite: `expected` [rows, the last that matter or more, V]. Before these, half of the tokens
    at the least are prefilled in two chunks: one from the start, padded where a row is behind, and one that looks
    back."""
    rows, length = tokens.shape
    start = max(length // 2, length - _STEPS)
    first = start // 2 or start
    behind = torch.arange(rows, device=tokens.device) * min(_LAG, max(first - 1, 0))
    for begin, end in ((0, first), (first, start)):
        if begin < end:
            runner.prefill((_chunk(tokens, begin, end, behind),))
    worst = 0.0
    for i in range(start, length):
        places = torch.arange(rows, device=tokens.device), i - behind
        wanted = expected[places[0], places[1] - length]
        logits = runner.decode(tokens[places], places[1], i + 1)
        sound = torch.isfinite(wanted).all(dim=-1)
        if not sound.any():
            continue
        wanted = wanted[sound]
        error = (logits[sound] - wanted).abs().max().item() / (tolerance * (1.0 + wanted.abs().max().item()))
        worst = max(worst, error if math.isfinite(error) else math.inf)
    return worst


def _chunk(tokens: torch.Tensor, begin: int, end: int, behind: torch.Tensor) -> ChunkBatch:
    """Of all rows up to `end`, less what each is `behind`."""
    rows, from_start = len(tokens), begin == 0
    ends = end - behind[:, None]
    positions = torch.arange(begin, end, device=tokens.device) - (0 if from_start else behind[:, None])
    kept = (positions < ends).expand(rows, -1)
    positions = positions.minimum(ends - 1)
    own, source = (None, None) if kept.all() else (kept.flatten().nonzero()[:, 0], kept.flatten().cumsum(0) - 1)
    slots = torch.arange(rows, device=tokens.device)
    return ChunkBatch(tokens.gather(1, positions), positions, slots, end, own, source, from_start)
