"""Attention for packed rows, under transformers' `AttentionInterface`: every sample sees only itself."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headrace.models.attention_choice import blocks_are_faster
from headrace.models.blocked_attention import blocked_attention
from headrace.models.length_batches import SegmentPlan
from headrace.models.varlen_attention import varlen_attention

PACKED_ATTENTION = "headrace_packed"
KNOWN_LAYERS = {"full_attention", "sliding_attention"}
"""Layer types whose mask a function of `AttentionInterface` can tell from the arguments that it gets."""
_MASK_HAS_WINDOW = {"phimoe"}
"""Model types without layer types whose mask is made from the config's window, for all layers, and whose attention does
not pass it on. Of others without layer types some pass it on, and some keep in their config what nothing uses."""
_UNSUPPORTED = ("s_aux", "position_bias", "head_mask", "cache")


def window_of(module: nn.Module, given: int | None) -> int | None:
    """Of how many tokens its layer sees the last ones; None: of all. `given`: by the call. Qwen2-MoE leaves the window
    to the mask, which is made from the config's layer types, and PhiMoE to one that is made from the window alone."""
    if given is None:
        config: Any = getattr(module, "config", None)
        layers, place = getattr(config, "layer_types", None) or (), getattr(module, "layer_idx", None)
        slides = isinstance(place, int) and place < len(layers) and layers[place] == "sliding_attention"
        if slides or getattr(config, "model_type", None) in _MASK_HAS_WINDOW:
            window: int | None = getattr(config, "sliding_window", None)
            return window
    return given


class UnsupportedAttention(NotImplementedError):
    """The model asks for a kind of attention that this one does not compute."""


def register_packed_attention() -> None:
    """Make `PACKED_ATTENTION` known to transformers. Idempotent."""
    from transformers import AttentionInterface

    AttentionInterface.register(PACKED_ATTENTION, packed_attention)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    segments: SegmentPlan | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    **other: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each of `segments`. query [1, H, N, D], key and value [1, K, N, D] to [1, N, H, D].

    `sliding_window` w: a token sees itself and the w - 1 before it. `softcap` c: scores become c tanh(score / c).
    Raises UnsupportedAttention for a mask, dropout, attention sinks, a position bias or a cache, and for a call that
    says nothing of segments.
    """
    if segments is None:
        raise UnsupportedAttention(
            "this model was prepared for packed rows: call it through PackedLM, or first give it another attention "
            "with `model.set_attn_implementation('sdpa')`"
        )
    asked = [name for name in _UNSUPPORTED if other.get(name) is not None]
    asked += ["attention_mask"] if attention_mask is not None else []
    asked += ["dropout"] if dropout else []
    asked += [] if getattr(module, "is_causal", True) else ["bidirectional attention"]
    if asked:
        raise UnsupportedAttention(f"{type(module).__name__} asks for {', '.join(asked)}")

    window = window_of(module, sliding_window)
    if (shared := segments.shared) is not None:
        query, key, value = (shared.by_heads(states, segments.tokens) for states in (query, key, value))
    q, k, v = (states[0].transpose(0, 1) for states in (query, key, value))
    made = None if softcap is not None else _at_once(q, k, v, segments, scaling, window)
    if made is None:
        made = _by_length(q, k, v, segments, scaling, window, softcap)
    return (made[None] if shared is None else shared.by_tokens(made[None])), None


def _at_once(
    q: Tensor, k: Tensor, v: Tensor, segments: SegmentPlan, scaling: float | None, window: int | None
) -> Tensor | None:
    """[U, H, D], [U, K, D], [U, K, D] to [U, H, D]; None where there is no kernel for it."""
    if segments.varied is None or (attend := varlen_attention(q, k, v, window)) is None:
        return None
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(q, segments.spread(k), segments.spread(v), segments.varied(), scale, window)


def _by_length(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segments: SegmentPlan,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """As `_at_once`, in batches of samples of like length."""
    outputs = []
    counts = [samples * length for samples, length in segments.shapes]
    parts = zip(*(segments.regroup(states).split(counts) for states in (q, k, v)), strict=True)
    for (samples, length), part in zip(segments.shapes, parts, strict=True):
        queries, keys, values = (states.unflatten(0, (samples, length)).transpose(1, 2) for states in part)
        if softcap is None:
            out = _fused(queries, keys, values, scaling, window)
        else:
            out = _capped(queries, keys, values, scaling, window, softcap)
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    return segments.restore(torch.cat(outputs) if len(outputs) > 1 else outputs[0])


def _fused(q: Tensor, k: Tensor, v: Tensor, scaling: float | None, window: int | None) -> Tensor:
    """[B, H, T, D], [B, K, T, D], [B, K, T, E] to [B, H, T, E]."""
    dtype = q.dtype
    whole = window is None or window >= q.shape[2]
    if whole and blocks_are_faster(q.device, dtype):
        return blocked_attention(q, k, v, q.shape[-1] ** -0.5 if scaling is None else scaling)
    if q.device.type == "cpu":
        # The CPU's half-precision backward is several times slower than its float32 one.
        q, k, v = q.float(), k.float(), v.float()
    mask = None if whole else _visible(q.shape[2], window, q.device)
    if q.device.type != "cpu" and (q.dtype == torch.float32 or mask is not None):
        # The memory-efficient kernel, the one for these cases, has no grouped heads.
        k, v = _repeat(k, q.shape[1]), _repeat(v, q.shape[1])
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.to(dtype)


def _capped(q: Tensor, k: Tensor, v: Tensor, scaling: float | None, window: int | None, softcap: float) -> Tensor:
    """As `_fused`, with capped scores, which no fused kernel has."""
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    k, v = _repeat(k, q.shape[1]), _repeat(v, q.shape[1])
    scores = softcap * torch.tanh((q @ k.transpose(-1, -2)) * scale / softcap)
    scores = scores.masked_fill(~_visible(q.shape[2], window, q.device), float("-inf"))
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype) @ v


def _repeat(states: Tensor, heads: int) -> Tensor:
    """[B, K, T, D] to [B, H, T, D]: each key and value head serves H / K query heads that follow each other."""
    return states if states.shape[1] == heads else states.repeat_interleave(heads // states.shape[1], dim=1)


def _visible(length: int, window: int | None, device: torch.device) -> Tensor:
    """[T, T] bool: True where query i sees key j."""
    visible = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return visible if window is None else visible.triu(1 - window)
