"""What a Llama-like decoder computes between its matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from headrace.engines.embedded.cache import KeyValueCache
from headrace.engines.embedded.ranges import RowRange, split_rows
from headrace.engines.embedded.runners.fused_weights import FusedShape, RmsNorm
from headrace.engines.embedded.runners.rope import RotaryTable
from headrace.engines.embedded.runners.slot_attention import decode_attention, decode_bias


@dataclass(frozen=True, slots=True)
class TokenPlaces:
    """Where the new tokens of a pass are."""

    positions: torch.Tensor
    """Int64 [N]."""
    slots: torch.Tensor
    """Int64 [N]: that each token's keys and values are written to."""


class Turn(Protocol):
    """Of the queries and keys of one pass."""

    def __call__(self, layer: int, qkv: torch.Tensor, norm: RmsNorm | None) -> torch.Tensor:
        """[N, (heads + 2 kv_heads) x head_dim] to queries, [N, heads, head_dim] in the cache's dtype: queries and keys
        are normalised, where there is a norm, and rotated; keys and values are written to the cache."""


class DecodeAttention(Protocol):
    """Attention of one decode step, for each of its layers."""

    def __call__(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """[n, heads, head_dim], of row i over slot i, to [n, heads x head_dim]."""


class Operations(Protocol):
    """Over one cache."""

    def norm(self, norm: RmsNorm, hidden: torch.Tensor) -> torch.Tensor:
        """[N, hidden], normalised, in the weights' dtype."""

    def turn(self, places: TokenPlaces) -> Turn:
        """For a pass over tokens at these places."""

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up: [N, 2 x intermediate] to [N, intermediate]."""

    def attention(self, positions: torch.Tensor, length: int) -> DecodeAttention:
        """Of a step that feeds row i at position i, int64 [n]; `length` is at least 1 + the greatest of them."""


class TorchOperations:
    """By torch's own kernels. On a CPU activations are float32 between the matrix products, whatever the weights."""

    def __init__(self, shape: FusedShape, rotary: RotaryTable, cache: KeyValueCache, dtype: torch.dtype) -> None:
        """`dtype`: of the weights."""
        self._shape = shape
        self._rotary = rotary
        self._cache = cache
        self._dtype = dtype

    def norm(self, norm: RmsNorm, hidden: torch.Tensor) -> torch.Tensor:
        return norm(hidden).to(self._dtype)

    def turn(self, places: TokenPlaces) -> Turn:
        shape, cache = self._shape, self._cache
        cos, sin = self._rotary.at(places.positions)
        parts, within = cache.at(places.slots, places.positions)

        def turned(layer: int, qkv: torch.Tensor, norm: RmsNorm | None) -> torch.Tensor:
            qkv = qkv.to(cache.dtype).view(len(qkv), -1, shape.head_dim)
            qk = qkv[:, : shape.heads + shape.kv_heads]
            source = qk if norm is None else norm(qk)
            half_turn = source.roll(shape.head_dim // 2, -1)
            torch.addcmul(source * cos, half_turn, sin, out=qk)
            new = qkv[:, shape.heads :].view(len(qkv), 2, shape.kv_heads, shape.head_dim)
            cache.layers[layer][:, parts, :, within] = new
            return qkv[:, : shape.heads]

        return turned

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=1)
        return F.silu(gate).mul_(up)

    def attention(self, positions: torch.Tensor, length: int) -> DecodeAttention:
        cache, count = self._cache, len(positions)
        on_cpu = positions.device.type == "cpu"  # where it costs nothing to look at them
        parts = [
            (part, decode_bias(positions[part.begin : part.end], part.length, None, cache.dtype))
            for part in (split_rows(positions) if on_cpu else [RowRange(0, count, length)])
        ]
        scale = self._shape.head_dim**-0.5

        def attend(layer: int, query: torch.Tensor) -> torch.Tensor:
            outs = []
            for part, bias in parts:
                keys, values = cache.window(layer, part.end, part.length)
                those = slice(part.begin, part.end)
                outs.append(decode_attention(query[those], keys[those], values[those], bias, scale))
            return (outs[0] if len(outs) == 1 else torch.cat(outs)).view(count, -1)

        return attend
