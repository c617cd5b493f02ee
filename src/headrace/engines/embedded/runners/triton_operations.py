"""What a Llama-like decoder computes between its matrix products, by kernels of our own on a CUDA device."""

from __future__ import annotations

import torch

from headrace.engines.embedded.cache import KeyValueCache
from headrace.engines.embedded.paged_cache import PagedCache
from headrace.engines.embedded.pages import pages_for
from headrace.engines.embedded.runners import triton_kernels as kernels
from headrace.engines.embedded.runners.fused_weights import FusedShape, RmsNorm
from headrace.engines.embedded.runners.operations import DecodeAttention, TokenPlaces, Turn
from headrace.engines.embedded.runners.rope import RotaryTable

_LEAST = 16
"""Rows and columns of the smallest product of a tensor core."""
_MOST_PARTS = 16
_PROGRAMS = 512
"""That keep a large device busy: keys of few rows are shared out among more programs."""
_COLUMNS = 1024
_SHARED = 99 * 1024
"""Bytes of shared memory that a program has at most on the smallest devices (compute capability 8.6, 8.9 and 12.0)."""
_STAGES = 3
_FEW = 1024
"""Bytes of it for sums over a program's threads."""


class TritonOperations:
    """Implements `Operations` over a cache in pages; matrix products are torch's."""

    def __init__(self, shape: FusedShape, rotary: RotaryTable, cache: KeyValueCache, dtype: torch.dtype) -> None:
        """`dtype`: of the weights."""
        if not isinstance(cache, PagedCache):
            raise TypeError("the kernels for CUDA devices read keys and values in pages, and this cache has none")
        self._shape = shape
        self._rotary = rotary
        self._cache = cache
        self._dtype = dtype
        self._head_block = _block(shape.head_dim)

    def norm(self, norm: RmsNorm, hidden: torch.Tensor) -> torch.Tensor:
        rows, width = hidden.shape
        out = torch.empty_like(hidden, dtype=self._dtype)
        kernels.rms_norm[(rows,)](hidden, norm.weight, out, self._shape.norm_eps, width, BLOCK=_block(width))
        return out

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        rows, width = len(gate_up), gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, width)
        kernels.silu_gated[(rows, -(-width // _COLUMNS))](gate_up, out, width, BLOCK=_COLUMNS)
        return out

    def turn(self, places: TokenPlaces) -> Turn:
        shape, cache = self._shape, self._cache
        table = self._rotary.table()

        def turned(layer: int, qkv: torch.Tensor, norm: RmsNorm | None) -> torch.Tensor:
            data, rows = cache.layers[layer], len(qkv)
            query = torch.empty((rows, shape.heads, shape.head_dim), dtype=cache.dtype, device=qkv.device)
            kernels.turn_and_store[(rows, shape.heads + 2 * shape.kv_heads)](
                qkv,
                qkv if norm is None else norm.weight,
                table,
                places.positions,
                places.slots,
                query,
                data,
                cache.table,
                shape.norm_eps,
                shape.heads,
                shape.kv_heads,
                shape.head_dim,
                cache.table.stride(0),
                *data.stride()[:3],
                NORMED=norm is not None,
                BLOCK=self._head_block,
                TOKENS=cache.page_tokens,
            )
            return query

        return turned

    def attention(self, positions: torch.Tensor, length: int) -> DecodeAttention:
        shape, cache, rows = self._shape, self._cache, len(positions)
        heads, head_dim, group = shape.heads, shape.head_dim, shape.heads // shape.kv_heads
        parts = parts_of(rows * shape.kv_heads, pages_for(length, cache.page_tokens))
        stages = stages_of(_block(group), cache.page_tokens, self._head_block, cache.dtype.itemsize)
        sums = torch.empty((rows, heads, parts, head_dim), dtype=torch.float32, device=positions.device)
        peaks, totals = (sums.new_empty(rows, heads, parts) for _ in range(2))

        def attend(layer: int, query: torch.Tensor) -> torch.Tensor:
            data = cache.layers[layer]
            kernels.attend_part[(rows, shape.kv_heads, parts)](
                query,
                data,
                cache.table,
                positions,
                sums,
                peaks,
                totals,
                head_dim**-0.5,
                heads,
                head_dim,
                cache.table.stride(0),
                *data.stride()[:3],
                GROUP=group,
                QUERIES=_block(group),
                KEYS=cache.page_tokens,
                BLOCK=self._head_block,
                PARTS=parts,
                PRECISION="ieee",  # else float32 would be rounded to 11 bits
                num_stages=stages,
            )
            out = torch.empty_like(query)
            kernels.join_parts[(rows * heads,)](sums, peaks, totals, out, head_dim, BLOCK=self._head_block, PARTS=parts)
            return out.flatten(1)

        return attend


def parts_of(programs: int, pages: int) -> int:
    """In how many parts keys are looked at, where `programs` would each look at so many pages; a power of two."""
    most = min(_MOST_PARTS, pages)
    parts = 1
    while 2 * parts <= most and parts * programs < _PROGRAMS:
        parts *= 2
    return parts


def stages_of(queries: int, keys: int, width: int, itemsize: int) -> int:
    """Of `attend_part`'s loop: in how many a tile of keys or values, [keys, width], is loaded while others are computed
    with. Of several, two tiles are in shared memory; in one, which does not load ahead, one is."""
    tile, scores = keys * width * itemsize, 4 * queries * keys
    others = queries * width * itemsize + scores + _FEW
    return _STAGES if 2 * tile + others <= _SHARED else 1


def _block(n: int) -> int:
    """The smallest that holds n: a power of two."""
    return max(1 << (n - 1).bit_length(), _LEAST)
