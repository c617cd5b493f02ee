"""Kernels for CUDA devices, each in the place of several of torch's. What they compute is float32 until it is stored.

Sizes of blocks are powers of two; places past the end of a row are masked. Addresses are of int64: a cache has more
numbers than 32 bits count. Triton's compiler looks up what annotates parameters, and knows names of its own alone.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rms_norm(
    x: tl.tensor, weight: tl.tensor, out: tl.tensor, eps: tl.tensor, width: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """x / sqrt(mean(x^2) + eps) * weight. One program for each row of x [N, width]."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(x + row * width + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / width + eps)
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, (value * scale * factor).to(out.dtype.element_ty), mask=inside)


@triton.jit
def silu_gated(gate_up: tl.tensor, out: tl.tensor, width: tl.tensor, BLOCK: tl.constexpr) -> None:
    """silu(gate) * up of [N, 2 width]. Programs: rows, blocks of columns."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


@triton.jit
def turn_and_store(
    qkv: tl.tensor,
    weight: tl.tensor,
    table: tl.tensor,
    positions: tl.tensor,
    slots: tl.tensor,
    query: tl.tensor,
    cache: tl.tensor,
    pages: tl.tensor,
    eps: tl.tensor,
    heads: tl.tensor,
    kv_heads: tl.tensor,
    head_dim: tl.tensor,
    table_stride: tl.tensor,
    kind_stride: tl.tensor,
    page_stride: tl.tensor,
    head_stride: tl.tensor,
    NORMED: tl.constexpr,
    BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
) -> None:
    """Programs: tokens, heads of qkv [N, heads + 2 kv_heads, head_dim]. Queries and keys are normalised with weight
    [heads + kv_heads, head_dim], and rotated by table [positions, 2, head_dim]: cosines, then sines that are negative
    in the first half. Queries go to query [N, heads, head_dim], keys and values to cache[0, 1: page, head, place in
    it], where pages [slots, ...] has the page of each TOKENS positions of a slot."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, BLOCK)
    inside = column < head_dim
    turned = heads + kv_heads
    source = qkv + (token * (turned + kv_heads) + head) * head_dim
    value = tl.load(source + column, mask=inside, other=0.0).to(tl.float32)
    position = tl.load(positions + token)
    if head < turned:
        other = tl.where(column < head_dim // 2, column + head_dim // 2, column - head_dim // 2)
        across = tl.load(source + other, mask=inside, other=0.0).to(tl.float32)
        if NORMED:
            scale = tl.rsqrt(tl.sum(value * value, axis=0) / head_dim + eps)
            own = tl.load(weight + head * head_dim + column, mask=inside, other=0.0).to(tl.float32)
            theirs = tl.load(weight + head * head_dim + other, mask=inside, other=0.0).to(tl.float32)
            value, across = value * scale * own, across * scale * theirs
        angle = table + position * 2 * head_dim
        cosine = tl.load(angle + column, mask=inside, other=0.0).to(tl.float32)
        sine = tl.load(angle + head_dim + column, mask=inside, other=0.0).to(tl.float32)
        value = value * cosine + across * sine
    if head < heads:
        place = query + (token * heads + head) * head_dim
    else:
        slot = tl.load(slots + token)
        page = tl.load(pages + slot * table_stride + position // TOKENS).to(tl.int64)
        kind = (head - heads) // kv_heads
        place = cache + kind * kind_stride + page * page_stride
        place += ((head - heads) % kv_heads) * head_stride + (position % TOKENS) * head_dim
    tl.store(place + column, value.to(query.dtype.element_ty), mask=inside)


@triton.jit
def attend_part(
    query: tl.tensor,
    cache: tl.tensor,
    pages: tl.tensor,
    positions: tl.tensor,
    sums: tl.tensor,
    peaks: tl.tensor,
    totals: tl.tensor,
    scale: tl.tensor,
    heads: tl.tensor,
    head_dim: tl.tensor,
    table_stride: tl.tensor,
    kind_stride: tl.tensor,
    page_stride: tl.tensor,
    head_stride: tl.tensor,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Programs: rows, key heads, parts of the row's keys (Flash-Decoding; Dao et al. 2023). Row i looks at slot i up to
    its position, at one page of KEYS tokens after the other. Each makes, for the GROUP query heads of its key head, the
    greatest score, the sum of weights relative to it, and the weighted sum of values: [N, heads, PARTS(, head_dim)]
    float32."""
    row, kv_head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    member = tl.arange(0, QUERIES)
    column = tl.arange(0, BLOCK)
    inside = column < head_dim
    head = kv_head * GROUP + member
    asks = (member < GROUP)[:, None] & inside[None, :]
    q = tl.load(query + (row * heads + head)[:, None] * head_dim + column[None, :], mask=asks, other=0.0)
    length = tl.load(positions + row) + 1
    blocks = tl.cdiv(tl.cdiv(length, KEYS), PARTS)
    begin = part * blocks * KEYS
    end = tl.minimum(begin + blocks * KEYS, length)
    own = cache + kv_head * head_stride
    within = tl.arange(0, KEYS)
    offset = within[:, None] * head_dim + column[None, :]
    peak = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    summed = tl.zeros([QUERIES, BLOCK], tl.float32)
    for first in range(begin, end, KEYS):
        keys = own + tl.load(pages + row * table_stride + first // KEYS).to(tl.int64) * page_stride
        seen = first + within < end
        there = seen[:, None] & inside[None, :]
        k = tl.load(keys + offset, mask=there, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        weights = tl.exp(scores - higher[:, None])
        fade = tl.exp(peak - higher)
        v = tl.load(keys + kind_stride + offset, mask=there, other=0.0)
        total = total * fade + tl.sum(weights, axis=1)
        summed = summed * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        peak = higher
    to = (row * heads + head) * PARTS + part
    tl.store(peaks + to, peak, mask=member < GROUP)
    tl.store(totals + to, total, mask=member < GROUP)
    tl.store(sums + to[:, None] * head_dim + column[None, :], summed, mask=asks)


@triton.jit
def join_parts(
    sums: tl.tensor,
    peaks: tl.tensor,
    totals: tl.tensor,
    out: tl.tensor,
    head_dim: tl.tensor,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
) -> None:
    """One program for each of N x heads: attention over all keys, from what `attend_part` made of the parts. A part
    without keys has the peak -inf."""
    row = tl.program_id(0).to(tl.int64)
    column, part = tl.arange(0, BLOCK), tl.arange(0, PARTS)
    inside = column < head_dim
    peak = tl.load(peaks + row * PARTS + part)
    share = tl.exp(peak - tl.max(peak, axis=0))
    total = tl.sum(share * tl.load(totals + row * PARTS + part), axis=0)
    offset = (row * PARTS + part)[:, None] * head_dim + column[None, :]
    summed = tl.load(sums + offset, mask=inside[None, :], other=0.0)
    value = tl.sum(share[:, None] * summed, axis=0) / total
    tl.store(out + row * head_dim + column, value.to(out.dtype.element_ty), mask=inside)
