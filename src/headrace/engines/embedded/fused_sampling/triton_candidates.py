"""What the kernels of `triton_sampling.py` look for among a row's candidates, which have keys and ids [size]."""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.engines.embedded.fused_sampling.triton_masses import mass_of, value_of


@triton.jit
def lowest_of(keys: tl.tensor, size: tl.tensor, peak_key: tl.tensor, TILE: tl.constexpr) -> tl.tensor:
    """The least key of the candidates."""
    lowest = tl.full([TILE], 0x7FFFFFFF, tl.int32)
    for first in range(0, size, TILE):
        place = first + tl.arange(0, TILE)
        lowest = tl.minimum(lowest, tl.load(keys + place, mask=place < size, other=peak_key))
    return tl.min(lowest, axis=0)


@triton.jit
def above_edge(
    keys: tl.tensor, size: tl.tensor, edge: tl.tensor, peak: tl.tensor, TILE: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """How many candidates are above the edge, and their mass."""
    count = tl.zeros([TILE], tl.int32)
    mass = tl.zeros([TILE], tl.int64)
    for first in range(0, size, TILE):
        place = first + tl.arange(0, TILE)
        key = tl.load(keys + place, mask=place < size, other=edge)
        count += (key > edge).to(tl.int32)
        mass += tl.where(key > edge, mass_of(value_of(key), peak), 0)
    return tl.sum(count, axis=0).to(tl.int64), tl.sum(mass, axis=0)


@triton.jit
def at_edge_of(
    keys: tl.tensor, size: tl.tensor, edge: tl.tensor, peak: tl.tensor, TILE: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """How many candidates are at the edge, and the mass of each."""
    above, mass_above = above_edge(keys, size, edge, peak, TILE)
    upwards, mass_upwards = above_edge(keys, size, edge - 1, peak, TILE)
    count = upwards - above
    return count, (mass_upwards - mass_above) // tl.maximum(count, 1)


@triton.jit
def edge_of(
    keys: tl.tensor,
    size: tl.tensor,
    lowest: tl.tensor,
    peak_key: tl.tensor,
    enough: tl.tensor,
    BY_MASS: tl.constexpr,
    TILE: tl.constexpr,
) -> tl.tensor:
    """The greatest key such that candidates from it upwards are `enough`, or weigh that; all of them do."""
    peak = value_of(peak_key)
    low = lowest.to(tl.int64)
    high = peak_key.to(tl.int64) + 1
    while high - low > 1:
        middle = low + ((high - low) >> 1)
        count, mass = above_edge(keys, size, (middle - 1).to(tl.int32), peak, TILE)
        if BY_MASS:
            count = mass
        low = tl.where(count >= enough, middle, low)
        high = tl.where(count >= enough, high, middle)
    return low.to(tl.int32)


@triton.jit
def store_kept(
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
def nth_at(
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
