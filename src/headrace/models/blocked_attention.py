"""Causal attention by blocks of queries, for bfloat16 on CPUs that multiply it faster than float32.

torch's fused kernel computes there as fast as in float32, at best. Here are few large batched products in bfloat16, and
what lies between them is float32 and stays in a processor's cache. As FlashAttention has it (Dao et al.,
arXiv:2205.14135), nothing of the size of the scores is kept: the backward pass computes them again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_QUERIES = 96
"""In a block at most: it looks at the keys up to its last one, so that of long samples little more than half of the
scores are computed."""
_SCORES = 1 << 19
"""Computed at a time: 2 MiB of float32."""


def blocked_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """[B, H, T, D], [B, K, T, D] and [B, K, T, E] to [B, H, T, E], of one dtype; causal, differentiable once.

    Each key head serves H / K query heads that follow each other. Scores have 16 bits at least, the softmax is computed
    in float32; its weights, and in the backward pass the gradients of both, are rounded to the dtype.
    """
    result: Tensor = _BlockedAttention.apply(query, key, value, scale)
    return result


@dataclass(frozen=True, slots=True)
class _Block:
    heads: slice
    """Of B x K key heads."""
    queries: slice
    keys: slice


def _blocks(heads: int, group: int, length: int) -> Iterator[_Block]:
    """Of `heads` key heads that serve `group` query heads each."""
    width = _width(length)
    for begin in range(0, length, width):
        end = min(begin + width, length)
        at_once = max(1, _SCORES // (group * (end - begin) * end))
        for first in range(0, heads, at_once):
            yield _Block(slice(first, min(first + at_once, heads)), slice(begin, end), slice(0, end))


def _width(length: int) -> int:
    """Of blocks as equal as may be."""
    return math.ceil(length / math.ceil(length / _QUERIES))


def _scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """scale q k^T, [h, n, D] and [h, m, D] to float32 [h, n, m]. A product in bfloat16 is added up in float32 and
    rounded at its end: what that took away is computed once more, and given back."""
    turned = key.transpose(1, 2)
    rough = _scaled(query, turned, scale)
    if query.dtype == torch.float32:
        return rough
    return rough.float().add_(torch.baddbmm(rough, query, turned, beta=-1, alpha=scale))


def _scaled(left: Tensor, right: Tensor, scale: float) -> Tensor:
    """scale left right, rounded once: [h, n, D] and [h, D, m] to [h, n, m]."""
    return torch.baddbmm(left.new_empty(1, 1, 1), left, right, beta=0, alpha=scale)


def _weights(query: Tensor, key: Tensor, scale: float, block: _Block, ahead: Tensor) -> Tensor:
    """The softmax over the keys that a query may look at, float32 [h, group x n, m], from [h, group x n, D]."""
    scores = _scores(query, key, scale)
    width = block.queries.stop - block.queries.start
    on_diagonal = scores.view(len(query), -1, width, block.keys.stop)[..., block.queries]
    on_diagonal.add_(ahead[:width, :width])
    return torch.softmax(scores, dim=-1)


def _ahead(length: int) -> Tensor:
    """-inf where a key is ahead of a query of the same block."""
    width = _width(length)
    return torch.full((width, width), -math.inf).triu_(1)


class _BlockedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        batch, heads, length, width = query.shape
        group = heads // key.shape[1]
        q = query.reshape(-1, group, length, width)
        k, v = (states.reshape(-1, length, states.shape[-1]) for states in (key, value))
        out = q.new_empty(*q.shape[:3], v.shape[-1])
        ahead = _ahead(length)
        for block in _blocks(len(k), group, length):
            some = q[block.heads, :, block.queries]
            weights = _weights(some.flatten(1, 2), k[block.heads, block.keys], scale, block, ahead)
            made = torch.bmm(weights.to(v.dtype), v[block.heads, block.keys])
            out[block.heads, :, block.queries] = made.view(*some.shape[:3], -1)
        ctx.save_for_backward(q, k, v, out)
        ctx.scale, ctx.shapes = scale, (query.shape, key.shape, value.shape)
        return out.view(batch, heads, length, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """With P the weights, G the gradient of O = P V: dV = P^T G, dS = P (G V^T - rowsum(G O)), dQ = s dS K,
        dK = s dS^T Q."""
        q, k, v, out = ctx.saved_tensors
        group, length = q.shape[1:3]
        grad = grads[0].reshape(out.shape)
        ahead = _ahead(length)
        by_q = torch.empty_like(q)
        by_k, by_v = (torch.zeros_like(states, dtype=torch.float32) for states in (k, v))
        for block in _blocks(len(k), group, length):
            at = block.heads, slice(None), block.queries
            some, given = q[at].flatten(1, 2), grad[at].flatten(1, 2)
            keys = k[block.heads, block.keys]
            weights = _weights(some, keys, ctx.scale, block, ahead)
            by_v[block.heads, block.keys] += torch.bmm(weights.to(given.dtype).transpose(1, 2), given)
            by_weights = torch.bmm(given, v[block.heads, block.keys].transpose(1, 2)).float()
            inner = (grad[at] * out[at]).sum(-1, dtype=torch.float32).flatten(1)[..., None]
            by_scores = weights.mul_(by_weights.sub_(inner)).to(given.dtype)
            by_q[at] = _scaled(by_scores, keys, ctx.scale).view(q[at].shape)
            by_k[block.heads, block.keys] += _scaled(by_scores.transpose(1, 2), some, ctx.scale)
        shapes = ctx.shapes
        return by_q.view(shapes[0]), by_k.to(k.dtype).view(shapes[1]), by_v.to(v.dtype).view(shapes[2]), None
