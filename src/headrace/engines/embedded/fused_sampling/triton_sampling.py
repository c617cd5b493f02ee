"""Kernels for CUDA devices that sample, without sorting. `fused_sampler.py` has the order in which they are called.

Logits are divided by the temperature, rounded as torch rounds. Their order is that of *keys*, int32: greater logits
have greater ones, equal logits the same one, and NaN the greatest. A row has a *peak*, its greatest logit. Where that
is no finite number, the row has no distribution.

The *mass* of a token is exp(logit - peak) in units of 2^-40, rounded down to an integer. Sums of integers are the same
in whatever order they are made, so that what is kept and sampled depends on the row alone, and each mass is compared
with exactly the sum that another kernel made. A row of 2^20 tokens weighs 2^60 at most.

A row is cut into slices of SLICE tokens, one program each; a program goes over its slice in tiles. Rows are addressed
with int64.

NaN is no constant of the module: Triton refuses to launch what reads one that is unequal to its copy.
"""

from __future__ import annotations

import triton
import triton.language as tl

BUCKETS = tl.constexpr(16)
"""Of tokens by their distance to the peak: less than 1, 2, ..., 15, and all others."""
_LEAST = tl.constexpr(-(1 << 63))
_PLUS_INFINITY, _MINUS_INFINITY = tl.constexpr(0x7F800000), tl.constexpr(-0x7F800001)
"""Their keys."""
_ONE, _UNIT = tl.constexpr(2.0**40), tl.constexpr(2.0**-40)
_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_FIRST_FACTOR, _SECOND_FACTOR = tl.constexpr(0xBF58476D1CE4E5B9), tl.constexpr(0x94D049BB133111EB)


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
    greatest = tl.full([TILE], _LEAST, tl.int64)
    for first in range(part * SLICE, part * SLICE + SLICE, TILE):
        token = first + tl.arange(0, TILE)
        key = _key(_scaled(logits + row * vocab, token, vocab, temperature))
        ranked = (key.to(tl.int64) << 32) | (0xFFFFFFFF - token.to(tl.int64))
        greatest = tl.maximum(greatest, tl.where(token < vocab, ranked, _LEAST))
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
    peak_key = _peak_key(_greatest(peaks + row * parts, parts, SLICES))
    peak = _value(peak_key)
    buckets = tl.where(tl.load(truncated + row), BUCKETS, 1)
    column = tl.arange(0, BUCKETS)
    count = tl.zeros([BUCKETS], tl.int32)
    mass = tl.zeros([BUCKETS], tl.int64)
    if _is_finite(peak_key):
        for first in range(part * SLICE, part * SLICE + SLICE, TILE):
            value = _scaled(logits + row * vocab, first + tl.arange(0, TILE), vocab, temperature)
            bucket = tl.minimum(_bucket(value, peak), buckets - 1)
            own_mass = _mass(value, peak)
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
    peak_key = _peak_key(_greatest(peaks + row * parts, parts, SLICES))
    if tl.load(truncated + row) & _is_finite(peak_key):
        peak = _value(peak_key)
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
            some_left = tl.cumsum(mass, axis=0) - mass < _share(p, tl.sum(mass, axis=0))
        last = tl.sum(some_left.to(tl.int32), axis=0) - 1
        taken_by_slice = tl.sum(tl.where((column <= last)[None, :], count_by_slice, 0), axis=1)
        written = tl.sum(tl.where(slices < part, taken_by_slice, 0), axis=0)
        for first in range(part * SLICE, part * SLICE + SLICE, TILE):
            token = first + tl.arange(0, TILE)
            value = _scaled(logits + row * vocab, token, vocab, temperature)
            taken = (value > float("-inf")) & (_bucket(value, peak) <= last)
            to = row * vocab + written + tl.cumsum(taken.to(tl.int32), axis=0) - 1
            tl.store(keys + to, _key(value), mask=taken)
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
        peak_key = _peak_key(_greatest(peaks + row * parts, parts, SLICES))
        if _is_finite(peak_key):
            peak = _value(peak_key)
            keys += row * vocab
            ids += row * vocab
            kept += row * width
            size = tl.load(sizes + row)
            most, p = tl.load(top_k + row), tl.load(top_p + row)
            lowest = _lowest(keys, size, peak_key, TILE)
            edge, at_edge, count = lowest, size.to(tl.int64), size.to(tl.int64)
            _, mass = _above(keys, size, lowest - 1, peak, TILE)
            whole = mass
            total = mass
            if most > size:  # then the candidates are those that reach top_p of all
                total = tl.sum(_mass_by_slice(masses + row * parts * BUCKETS, parts, SLICES), axis=0)
            if most < size:
                edge = _edge(keys, size, lowest, peak_key, most, False, TILE)
                above, mass_above = _above(keys, size, edge, peak, TILE)
                _, mass_each = _at(keys, size, edge, peak, TILE)
                count, at_edge = most, most - above
                mass = mass_above + at_edge * mass_each
                total = mass
            if p < 1.0:
                enough = tl.minimum(_share(p, total), whole)
                edge = _edge(keys, size, lowest, peak_key, enough, True, TILE)
                above, mass_above = _above(keys, size, edge, peak, TILE)
                ties, mass_each = _at(keys, size, edge, peak, TILE)
                at_edge = tl.minimum(_cover(enough - mass_above, mass_each), ties)
                count = above + at_edge
                mass = mass_above + at_edge * mass_each
            reached = _drawn(tl.load(streams + row), tl.load(positions + row), mass) + 1
            chosen = _edge(keys, size, lowest, peak_key, reached, True, TILE)
            _, mass_above = _above(keys, size, chosen, peak, TILE)
            ties, mass_each = _at(keys, size, chosen, peak, TILE)
            which = tl.minimum(_cover(reached - mass_above, mass_each), ties)
            _store_kept(keys, ids, size, edge, at_edge, kept, width, TILE)
            tl.store(tokens + row, _nth(keys, ids, size, chosen, which, TILE))
            tl.store(logprobs + row, _value(chosen) - peak - _log_of(mass))
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
        greatest = _greatest(peaks + row * parts, parts, SLICES)
        peak_key = _peak_key(greatest)
        if _is_finite(peak_key):
            logits += row * vocab
            peak = _value(peak_key)
            temperature = tl.load(temperatures + row)
            by_slice = _mass_by_slice(masses + row * parts * BUCKETS, parts, SLICES)
            total = tl.sum(by_slice, axis=0)
            token = 0xFFFFFFFF - (greatest & 0xFFFFFFFF)
            if tl.load(greedy + row) == 0:
                reached = _drawn(tl.load(streams + row), tl.load(positions + row), total) + 1
                slices = tl.arange(0, SLICES)
                part = tl.sum((tl.cumsum(by_slice, axis=0) < reached).to(tl.int32), axis=0)
                mass = tl.sum(tl.where(slices < part, by_slice, 0), axis=0)
                token = (part * SLICE).to(tl.int64)
                for first in range(part * SLICE, part * SLICE + SLICE, TILE):
                    value = _scaled(logits, first + tl.arange(0, TILE), vocab, temperature)
                    own_mass = _mass(value, peak)
                    before = mass + tl.cumsum(own_mass, axis=0) < reached
                    token += tl.sum(before.to(tl.int32), axis=0)
                    mass += tl.sum(own_mass, axis=0)
                token = tl.minimum(token, vocab - 1)
            value = tl.div_rn(tl.load(logits + token), temperature)
            tl.store(tokens + row, token)
            tl.store(logprobs + row, value - peak - _log_of(total))
        else:
            tl.store(tokens + row, 0)
            tl.store(logprobs + row, float("nan"))


@triton.jit
def _scaled(logits: tl.tensor, token: tl.tensor, vocab: tl.tensor, temperature: tl.tensor) -> tl.tensor:
    """Logits / temperature; -inf past the end of the row."""
    return tl.div_rn(tl.load(logits + token, mask=token < vocab, other=float("-inf")), temperature)


@triton.jit
def _key(value: tl.tensor) -> tl.tensor:
    bits = value.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    key = tl.where(magnitude == 0, 0, bits ^ ((bits >> 31) & 0x7FFFFFFF))
    return tl.where(magnitude > _PLUS_INFINITY, 0x7FFFFFFF, key)


@triton.jit
def _value(key: tl.tensor) -> tl.tensor:
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _bucket(value: tl.tensor, peak: tl.tensor) -> tl.tensor:
    return tl.minimum(peak - value, BUCKETS - 1.0).to(tl.int32)


@triton.jit
def _mass(value: tl.tensor, peak: tl.tensor) -> tl.tensor:
    return (tl.exp(value - peak) * _ONE).to(tl.int64)


@triton.jit
def _log_of(mass: tl.tensor) -> tl.tensor:
    return tl.log(mass.to(tl.float32) * _UNIT)


@triton.jit
def _greatest(peaks: tl.tensor, parts: tl.tensor, SLICES: tl.constexpr) -> tl.tensor:
    """Of a row, as `find_peaks` writes it."""
    slices = tl.arange(0, SLICES)
    return tl.max(tl.load(peaks + slices, mask=slices < parts, other=_LEAST), axis=0)


@triton.jit
def _peak_key(greatest: tl.tensor) -> tl.tensor:
    return (greatest >> 32).to(tl.int32)


@triton.jit
def _is_finite(key: tl.tensor) -> tl.tensor:
    return (key > _MINUS_INFINITY) & (key < _PLUS_INFINITY)


@triton.jit
def _mass_by_slice(masses: tl.tensor, parts: tl.tensor, SLICES: tl.constexpr) -> tl.tensor:
    """[SLICES] of a row's [parts, BUCKETS]; those past the end have none."""
    slices, column = tl.arange(0, SLICES), tl.arange(0, BUCKETS)
    place = slices[:, None] * BUCKETS + column[None, :]
    return tl.sum(tl.load(masses + place, mask=(slices < parts)[:, None], other=0), axis=1)


@triton.jit
def _share(p: tl.tensor, mass: tl.tensor) -> tl.tensor:
    """The least mass that is p * mass or more, and not 0."""
    exact = p.to(tl.float64) * mass.to(tl.float64)
    below = exact.to(tl.int64)
    return tl.maximum(below + (below.to(tl.float64) < exact).to(tl.int64), 1)


@triton.jit
def _cover(mass: tl.tensor, mass_each: tl.tensor) -> tl.tensor:
    """How many of `mass_each` make at least `mass`."""
    each = tl.maximum(mass_each, 1)
    return (mass + each - 1) // each


@triton.jit
def _drawn(stream: tl.tensor, position: tl.tensor, mass: tl.tensor) -> tl.tensor:
    """u * mass, rounded down; u as in `noise.py`, of which these are the top 24 bits."""
    z = stream.to(tl.uint64, bitcast=True) + (position + 1).to(tl.uint64, bitcast=True) * _GOLDEN
    z = (z ^ (z >> 30)) * _FIRST_FACTOR
    z = (z ^ (z >> 27)) * _SECOND_FACTOR
    top = ((z ^ (z >> 31)) >> 40).to(tl.int64)
    return (mass >> 24) * top + (((mass & 0xFFFFFF) * top) >> 24)


@triton.jit
def _lowest(keys: tl.tensor, size: tl.tensor, peak_key: tl.tensor, TILE: tl.constexpr) -> tl.tensor:
    lowest = tl.full([TILE], 0x7FFFFFFF, tl.int32)
    for first in range(0, size, TILE):
        place = first + tl.arange(0, TILE)
        lowest = tl.minimum(lowest, tl.load(keys + place, mask=place < size, other=peak_key))
    return tl.min(lowest, axis=0)


@triton.jit
def _above(
    keys: tl.tensor, size: tl.tensor, edge: tl.tensor, peak: tl.tensor, TILE: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """How many candidates are above the edge, and their mass."""
    count = tl.zeros([TILE], tl.int32)
    mass = tl.zeros([TILE], tl.int64)
    for first in range(0, size, TILE):
        place = first + tl.arange(0, TILE)
        key = tl.load(keys + place, mask=place < size, other=edge)
        count += (key > edge).to(tl.int32)
        mass += tl.where(key > edge, _mass(_value(key), peak), 0)
    return tl.sum(count, axis=0).to(tl.int64), tl.sum(mass, axis=0)


@triton.jit
def _at(
    keys: tl.tensor, size: tl.tensor, edge: tl.tensor, peak: tl.tensor, TILE: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """How many candidates are at the edge, and the mass of each."""
    above, mass_above = _above(keys, size, edge, peak, TILE)
    upwards, mass_upwards = _above(keys, size, edge - 1, peak, TILE)
    count = upwards - above
    return count, (mass_upwards - mass_above) // tl.maximum(count, 1)


@triton.jit
def _edge(
    keys: tl.tensor,
    size: tl.tensor,
    lowest: tl.tensor,
    peak_key: tl.tensor,
    enough: tl.tensor,
    BY_MASS: tl.constexpr,
    TILE: tl.constexpr,
) -> tl.tensor:
    """The greatest key such that candidates from it upwards are `enough`, or weigh that; all of them do."""
    peak = _value(peak_key)
    low = lowest.to(tl.int64)
    high = peak_key.to(tl.int64) + 1
    while high - low > 1:
        middle = low + ((high - low) >> 1)
        count, mass = _above(keys, size, (middle - 1).to(tl.int32), peak, TILE)
        if BY_MASS:
            count = mass
        low = tl.where(count >= enough, middle, low)
        high = tl.where(count >= enough, high, middle)
    return low.to(tl.int32)


@triton.jit
def _store_kept(
    keys: tl.tensor,
    ids: tl.tensor,
    size: tl.tensor,
    edge: tl.tensor,
    at_edge: tl.tensor,
    kept: tl.tensor,
    width: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    """The ids of all candidates above the edge, and of the first `at_edge` of those at it."""
    written = 0
    ties = 0
    for first in range(0, size, TILE):
        place = first + tl.arange(0, TILE)
        key = tl.load(keys + place, mask=place < size, other=edge)
        tied = ((key == edge) & (place < size)).to(tl.int32)
        taken = (key > edge) | ((tied > 0) & (ties + tl.cumsum(tied, axis=0) <= at_edge))
        to = written + tl.cumsum(taken.to(tl.int32), axis=0) - 1
        token = tl.load(ids + place, mask=taken, other=0)
        tl.store(kept + to, token, mask=taken & (to < width))
        written += tl.sum(taken.to(tl.int32), axis=0)
        ties += tl.sum(tied, axis=0)


@triton.jit
def _nth(
    keys: tl.tensor, ids: tl.tensor, size: tl.tensor, key: tl.tensor, which: tl.tensor, TILE: tl.constexpr
) -> tl.tensor:
    """The id of the candidate that is the so-manieth with this key, from 1 on."""
    ties = 0
    found = 0
    for first in range(0, size, TILE):
        place = first + tl.arange(0, TILE)
        tied = ((tl.load(keys + place, mask=place < size, other=0) == key) & (place < size)).to(tl.int32)
        this = (tied > 0) & (ties + tl.cumsum(tied, axis=0) == which)
        found += tl.sum(tl.load(ids + place, mask=this, other=0), axis=0)
        ties += tl.sum(tied, axis=0)
    return found
