"""Kernels for CUDA devices that sample, without sorting. `fused_sampler.py` has the order in which they are called.

Logits are divided by the temperature, rounded as torch rounds. Their order is that of *keys*, int32: greater logits
have greater ones, equal logits the same one, and NaN the greatest. A row has a *peak*, its greatest logit. Where that
is no finite number, the row has no distribution.

The *mass* of a token is exp(logit - peak) in units of 2^-40, rounded down to an integer. Sums of integers are the same
in whatever order they are made, so that what is kept and sampled depends on the row alone, and each mass is compared
with exactly the sum that another kernel made. A row of 2^20 tokens weighs 2^60 at most.

A row is cut into slices of SLICE tokens, one program each; a program goes over its slice in tiles. Rows are addressed
with int64.

Beside them are the functions that they call: `triton_masses.py`, and `triton_candidates.py`. NaN is no constant of a
module: Triton refuses to launch what reads one that is unequal to its copy.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.engines.embedded.fused_sampling.triton_candidates import (
    above_edge,
    at_edge_of,
    edge_of,
    lowest_of,
    nth_at,
    store_kept,
)
from headrace.engines.embedded.fused_sampling.triton_masses import (
    BUCKETS,
    LEAST,
    bucket_of,
    cover,
    drawn,
    greatest_of,
    is_finite,
    key_of,
    log_of,
    mass_of,
    mass_of_slices,
    peak_key_of,
    scaled,
    share_of,
    value_of,
)


@triton.jit
def find_peaks(
    logits: tl.tensor,
    temperatures: tl.tensor,
    peaks: tl.tensor,
    vocab: tl.tensor,
    SLICE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Programs: rows of logits [n, vocab], slices. The greatest of each slice, to peaks [n, slices], int64: its key
    above, 2^32 - 1 - its id below. Of equal ones that is the one with the lower id."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperatures + row)
    greatest = tl.full([TILE], LEAST, tl.int64)
    for first in range(part * SLICE, part * SLICE + SLICE, TILE):
        token = first + tl.arange(0, TILE)
        key = key_of(scaled(logits + row * vocab, token, vocab, temperature))
        ranked = (key.to(tl.int64) << 32) | (0xFFFFFFFF - token.to(tl.int64))
        greatest = tl.maximum(greatest, tl.where(token < vocab, ranked, LEAST))
    tl.store(peaks + row * tl.num_programs(1) + part, tl.max(greatest, axis=0))


@triton.jit
def weigh(
    logits: tl.tensor,
    temperatures: tl.tensor,
    truncated: tl.tensor,
    peaks: tl.tensor,
    counts: tl.tensor,
    masses: tl.tensor,
    vocab: tl.tensor,
    SLICE: tl.constexpr,
    TILE: tl.constexpr,
    SLICES: tl.constexpr,
) -> None:
    """Programs: rows, slices. How many tokens with a probability each bucket of a slice has, int32, and their mass,
    int64: [n, slices, BUCKETS] each. All are in the first bucket where the row is not truncated."""
    row, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    temperature = tl.load(temperatures + row)
    peak_key = peak_key_of(greatest_of(peaks + row * parts, parts, SLICES))
    peak = value_of(peak_key)
    buckets = tl.where(tl.load(truncated + row), BUCKETS, 1)
    column = tl.arange(0, BUCKETS)
    count = tl.zeros([BUCKETS], tl.int32)
    mass = tl.zeros([BUCKETS], tl.int64)
    if is_finite(peak_key):
        for first in range(part * SLICE, part * SLICE + SLICE, TILE):
            value = scaled(logits + row * vocab, first + tl.arange(0, TILE), vocab, temperature)
            bucket = tl.minimum(bucket_of(value, peak), buckets - 1)
            own_mass = mass_of(value, peak)
            for i in range(0, buckets):
                there = (bucket == i) & (value > float("-inf"))
                count += tl.where(column == i, tl.sum(there.to(tl.int32), axis=0), 0)
                mass += tl.where(column == i, tl.sum(tl.where(there, own_mass, 0), axis=0), 0)
    to = (row * parts + part) * BUCKETS + column
    tl.store(counts + to, count)
    tl.store(masses + to, mass)


@triton.jit
def gather(
    logits: tl.tensor,
    temperatures: tl.tensor,
    truncated: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    peaks: tl.tensor,
    counts: tl.tensor,
    masses: tl.tensor,
    keys: tl.tensor,
    ids: tl.tensor,
    sizes: tl.tensor,
    vocab: tl.tensor,
    SLICE: tl.constexpr,
    TILE: tl.constexpr,
    SLICES: tl.constexpr,
) -> None:
    """Programs: rows, slices. Of truncated rows the keys and ids of the candidates, which are all tokens of the first
    buckets that hold the kept set, in order of ids: int32 [n, vocab] each, of which the first `sizes` [n] are written.

    Those are the buckets that reach top_k tokens; where no more than that have a probability, those that reach top_p.
    """
    row, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    peak_key = peak_key_of(greatest_of(peaks + row * parts, parts, SLICES))
    if tl.load(truncated + row) & is_finite(peak_key):
        peak = value_of(peak_key)
        temperature = tl.load(temperatures + row)
        slices = tl.arange(0, SLICES)
        column = tl.arange(0, BUCKETS)
        place = (row * parts + slices)[:, None] * BUCKETS + column[None, :]
        count_by_slice = tl.load(counts + place, mask=(slices < parts)[:, None], other=0)
        mass_by_slice = tl.load(masses + place, mask=(slices < parts)[:, None], other=0)
        count, mass = tl.sum(count_by_slice, axis=0), tl.sum(mass_by_slice, axis=0)
        most, p = tl.load(top_k + row), tl.load(top_p + row)
        some_left = tl.cumsum(count, axis=0) - count < most
        if (most >= tl.sum(count, axis=0)) & (p < 1.0):
            some_left = tl.cumsum(mass, axis=0) - mass < share_of(p, tl.sum(mass, axis=0))
        last = tl.sum(some_left.to(tl.int32), axis=0) - 1
        taken_by_slice = tl.sum(tl.where((column <= last)[None, :], count_by_slice, 0), axis=1)
        written = tl.sum(tl.where(slices < part, taken_by_slice, 0), axis=0)
        for first in range(part * SLICE, part * SLICE + SLICE, TILE):
            token = first + tl.arange(0, TILE)
            value = scaled(logits + row * vocab, token, vocab, temperature)
            taken = (value > float("-inf")) & (bucket_of(value, peak) <= last)
            to = row * vocab + written + tl.cumsum(taken.to(tl.int32), axis=0) - 1
            tl.store(keys + to, key_of(value), mask=taken)
            tl.store(ids + to, token, mask=taken)
            written += tl.sum(taken.to(tl.int32), axis=0)
        if part == 0:
            tl.store(sizes + row, tl.sum(taken_by_slice, axis=0))


@triton.jit(do_not_specialize=["width"])
def choose_kept(
    truncated: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    streams: tl.tensor,
    positions: tl.tensor,
    peaks: tl.tensor,
    masses: tl.tensor,
    keys: tl.tensor,
    ids: tl.tensor,
    sizes: tl.tensor,
    tokens: tl.tensor,
    logprobs: tl.tensor,
    kept: tl.tensor,
    kept_counts: tl.tensor,
    vocab: tl.tensor,
    parts: tl.tensor,
    width: tl.tensor,
    TILE: tl.constexpr,
    SLICES: tl.constexpr,
) -> None:
    """One program for each row; does nothing for one that is not truncated. Its token, that token's log-prob, and the
    kept set: kept [n, width] and kept_counts [n]. A row without a distribution keeps token 0, whose log-prob is NaN.

    A set of the likeliest tokens is all that are above a key, its *edge*, and the first few of those at the edge, which
    all have one mass. The edge is found by bisection over the keys of the candidates.
    """
    row = tl.program_id(0).to(tl.int64)
    if tl.load(truncated + row):
        peak_key = peak_key_of(greatest_of(peaks + row * parts, parts, SLICES))
        if is_finite(peak_key):
            peak = value_of(peak_key)
            keys += row * vocab
            ids += row * vocab
            kept += row * width
            size = tl.load(sizes + row)
            most, p = tl.load(top_k + row), tl.load(top_p + row)
            lowest = lowest_of(keys, size, peak_key, TILE)
            edge, at_edge, count = lowest, size.to(tl.int64), size.to(tl.int64)
            _, mass = above_edge(keys, size, lowest - 1, peak, TILE)
            whole = mass
            total = mass
            if most > size:  # then the candidates are those that reach top_p of all
                total = tl.sum(mass_of_slices(masses + row * parts * BUCKETS, parts, SLICES), axis=0)
            if most < size:
                edge = edge_of(keys, size, lowest, peak_key, most, False, TILE)
                above, mass_above = above_edge(keys, size, edge, peak, TILE)
                _, mass_each = at_edge_of(keys, size, edge, peak, TILE)
                count, at_edge = most, most - above
                mass = mass_above + at_edge * mass_each
                total = mass
            if p < 1.0:
                enough = tl.minimum(share_of(p, total), whole)
                edge = edge_of(keys, size, lowest, peak_key, enough, True, TILE)
                above, mass_above = above_edge(keys, size, edge, peak, TILE)
                ties, mass_each = at_edge_of(keys, size, edge, peak, TILE)
                at_edge = tl.minimum(cover(enough - mass_above, mass_each), ties)
                count = above + at_edge
                mass = mass_above + at_edge * mass_each
            reached = drawn(tl.load(streams + row), tl.load(positions + row), mass) + 1
            chosen = edge_of(keys, size, lowest, peak_key, reached, True, TILE)
            _, mass_above = above_edge(keys, size, chosen, peak, TILE)
            ties, mass_each = at_edge_of(keys, size, chosen, peak, TILE)
            which = tl.minimum(cover(reached - mass_above, mass_each), ties)
            store_kept(keys, ids, size, edge, at_edge, kept, width, TILE)
            tl.store(tokens + row, nth_at(keys, ids, size, chosen, which, TILE))
            tl.store(logprobs + row, value_of(chosen) - peak - log_of(mass))
            tl.store(kept_counts + row, count)
        else:
            tl.store(tokens + row, 0)
            tl.store(logprobs + row, float("nan"))
            tl.store(kept + row * width, 0)
            tl.store(kept_counts + row, 1)


@triton.jit
def choose_of_all(
    logits: tl.tensor,
    temperatures: tl.tensor,
    greedy: tl.tensor,
    truncated: tl.tensor,
    streams: tl.tensor,
    positions: tl.tensor,
    peaks: tl.tensor,
    masses: tl.tensor,
    tokens: tl.tensor,
    logprobs: tl.tensor,
    vocab: tl.tensor,
    parts: tl.tensor,
    SLICE: tl.constexpr,
    TILE: tl.constexpr,
    SLICES: tl.constexpr,
) -> None:
    """One program for each row; does nothing for one that is truncated. Its token and that token's log-prob: the
    greatest where the row is greedy, else the first, by id, up to which the mass exceeds the draw's share. A row
    without a distribution has token 0, whose log-prob is NaN."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(truncated + row) == 0:
        greatest = greatest_of(peaks + row * parts, parts, SLICES)
        peak_key = peak_key_of(greatest)
        if is_finite(peak_key):
            logits += row * vocab
            peak = value_of(peak_key)
            temperature = tl.load(temperatures + row)
            by_slice = mass_of_slices(masses + row * parts * BUCKETS, parts, SLICES)
            total = tl.sum(by_slice, axis=0)
            token = 0xFFFFFFFF - (greatest & 0xFFFFFFFF)
            if tl.load(greedy + row) == 0:
                reached = drawn(tl.load(streams + row), tl.load(positions + row), total) + 1
                slices = tl.arange(0, SLICES)
                part = tl.sum((tl.cumsum(by_slice, axis=0) < reached).to(tl.int32), axis=0)
                mass = tl.sum(tl.where(slices < part, by_slice, 0), axis=0)
                token = (part * SLICE).to(tl.int64)
                for first in range(part * SLICE, part * SLICE + SLICE, TILE):
                    value = scaled(logits, first + tl.arange(0, TILE), vocab, temperature)
                    own_mass = mass_of(value, peak)
                    before = mass + tl.cumsum(own_mass, axis=0) < reached
                    token += tl.sum(before.to(tl.int32), axis=0)
                    mass += tl.sum(own_mass, axis=0)
                token = tl.minimum(token, vocab - 1)
            value = tl.div_rn(tl.load(logits + token), temperature)
            tl.store(tokens + row, token)
            tl.store(logprobs + row, value - peak - log_of(total))
        else:
            tl.store(tokens + row, 0)
            tl.store(logprobs + row, float("nan"))
