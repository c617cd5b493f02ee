"""Attention over the slots of the KV cache."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def decode_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor,
    scale: float,
    softcap: float | None = None,
) -> torch.Tensor:
    """One query per row: [n, heads, d] against keys and values [n, kv_heads, L, d]; returns [n, heads, d].

    `bias` [n, L] is 0 where the row may look and -inf elsewhere. Two plain matrix products over the heads that share
    a key head: for one query per row this beats `scaled_dot_product_attention`. They go over rows and key heads in the
    order in which these lie in memory, as else each would copy all of what it reads.
    """
    rows, heads, dim = query.shape
    kv_heads = keys.shape[1]
    grouped, bias = query.reshape(rows, kv_heads, heads // kv_heads, dim), bias[:, None, None]
    by_head = keys.stride(0) < keys.stride(1)  # so it is where they were gathered from pages
    if by_head:
        grouped, keys, values, bias = (each.transpose(0, 1) for each in (grouped, keys, values, bias))
    scores = torch.bmm(grouped.flatten(0, 1), keys.flatten(0, 1).transpose(1, 2)).unflatten(0, grouped.shape[:2])
    if softcap is not None:
        scores = torch.tanh(scores * (scale / softcap)) * softcap
        scale = 1.0
    scores = torch.add(bias, scores, alpha=scale)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)
    out = torch.bmm(weights.flatten(0, 1), values.flatten(0, 1)).view(grouped.shape)
    return (out.transpose(0, 1) if by_head else out).reshape(rows, heads, dim)


def prefill_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None = None,
) -> torch.Tensor:
    """[b, heads, T, d] against [b, kv_heads, L, d] under the bool mask [b, 1, T, L]; returns [b, heads, T, d]. Without
    one L is T, and query i looks at keys up to i."""
    groups, causal = query.shape[1] // keys.shape[1], mask is None
    if softcap is None and (query.device.type == "cpu" or (causal and query.dtype != torch.float32)):
        return F.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=groups > 1
        )
    keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
    if softcap is None:  # a device's kernel that takes masks, or float32, has no grouped heads
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=causal, scale=scale)
    assert mask is not None, "capped scores have no kernel that knows what is causal"
    scores = torch.tanh(query @ keys.transpose(2, 3) * (scale / softcap)) * softcap
    weights = torch.softmax(scores.masked_fill(~mask, -torch.inf), dim=-1, dtype=torch.float32)
    return weights.to(values.dtype) @ values


def visible(positions: torch.Tensor, length: int, window: int | None) -> torch.Tensor:
    """Bool [..., length]: the keys that a query at each of `positions` [...] may look at (itself included)."""
    keys = torch.arange(length, device=positions.device)
    ahead = keys <= positions[..., None]
    return ahead if window is None else ahead & (keys > positions[..., None] - window)


def decode_bias(positions: torch.Tensor, length: int, window: int | None, dtype: torch.dtype) -> torch.Tensor:
    """`visible` as what `decode_attention` adds: [n, length]."""
    bias = torch.zeros((len(positions), length), dtype=dtype, device=positions.device)
    return bias.masked_fill_(~visible(positions, length, window), -torch.inf)
