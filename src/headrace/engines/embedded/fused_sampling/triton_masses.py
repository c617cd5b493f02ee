"""What the kernels of `triton_sampling.py` reckon with: keys, masses, slices and draws."""

from __future__ import annotations

import triton
import triton.language as tl

BUCKETS = tl.constexpr(16)
"""Of tokens by their distance to the peak: less than 1, 2, ..., 15, and all others."""
LEAST = tl.constexpr(-(1 << 63))
_PLUS_INFINITY, _MINUS_INFINITY = tl.constexpr(0x7F800000), tl.constexpr(-0x7F800001)
"""Their keys."""
_ONE, _UNIT = tl.constexpr(2.0**40), tl.constexpr(2.0**-40)
_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_FIRST_FACTOR, _SECOND_FACTOR = tl.constexpr(0xBF58476D1CE4E5B9), tl.constexpr(0x94D049BB133111EB)


@triton.jit
def scaled(logits: tl.tensor, token: tl.tensor, vocab: tl.tensor, temperature: tl.tensor) -> tl.tensor:
    """Logits / temperature; -inf past the end of the row."""
    return tl.div_rn(tl.load(logits + token, mask=token < vocab, other=float("-inf")), temperature)


@triton.jit
def key_of(value: tl.tensor) -> tl.tensor:
    """Int32, in the order of the values; 0.0 and -0.0 have one, NaN the greatest."""
    bits = value.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    key = tl.where(magnitude == 0, 0, bits ^ ((bits >> 31) & 0x7FFFFFFF))
    return tl.where(magnitude > _PLUS_INFINITY, 0x7FFFFFFF, key)


@triton.jit
def value_of(key: tl.tensor) -> tl.tensor:
    """Of a key, as float32."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def bucket_of(value: tl.tensor, peak: tl.tensor) -> tl.tensor:
    """Which of the BUCKETS a token is in, by its distance to the peak."""
    return tl.minimum(peak - value, BUCKETS - 1.0).to(tl.int32)


@triton.jit
def mass_of(value: tl.tensor, peak: tl.tensor) -> tl.tensor:
    """exp(value - peak) in units of 2^-40, rounded down to an int64."""
    return (tl.exp(value - peak) * _ONE).to(tl.int64)


@triton.jit
def log_of(mass: tl.tensor) -> tl.tensor:
    """Of a mass, in units of 1."""
    return tl.log(mass.to(tl.float32) * _UNIT)


@triton.jit
def greatest_of(peaks: tl.tensor, parts: tl.tensor, SLICES: tl.constexpr) -> tl.tensor:
    """Of a row, as `find_peaks` writes it."""
    slices = tl.arange(0, SLICES)
    return tl.max(tl.load(peaks + slices, mask=slices < parts, other=LEAST), axis=0)


@triton.jit
def peak_key_of(greatest: tl.tensor) -> tl.tensor:
    """The key in what `greatest_of` finds."""
    return (greatest >> 32).to(tl.int32)


@triton.jit
def is_finite(key: tl.tensor) -> tl.tensor:
    """Whether the key is that of a finite number."""
    return (key > _MINUS_INFINITY) & (key < _PLUS_INFINITY)


@triton.jit
def mass_of_slices(masses: tl.tensor, parts: tl.tensor, SLICES: tl.constexpr) -> tl.tensor:
    """[SLICES] of a row's [parts, BUCKETS]; those past the end have none."""
    slices, column = tl.arange(0, SLICES), tl.arange(0, BUCKETS)
    place = slices[:, None] * BUCKETS + column[None, :]
    return tl.sum(tl.load(masses + place, mask=(slices < parts)[:, None], other=0), axis=1)


@triton.jit
def share_of(p: tl.tensor, mass: tl.tensor) -> tl.tensor:
    """The least mass that is p * mass or more, and not 0."""
    exact = p.to(tl.float64) * mass.to(tl.float64)
    below = exact.to(tl.int64)
    return tl.maximum(below + (below.to(tl.float64) < exact).to(tl.int64), 1)


@triton.jit
def cover(mass: tl.tensor, mass_each: tl.tensor) -> tl.tensor:
    """How many of `mass_each` make at least `mass`."""
    each = tl.maximum(mass_each, 1)
    return (mass + each - 1) // each


@triton.jit
def drawn(stream: tl.tensor, position: tl.tensor, mass: tl.tensor) -> tl.tensor:
    """u * mass, rounded down; u as in `noise.py`, of which these are the top 24 bits."""
    z = stream.to(tl.uint64, bitcast=True) + (position + 1).to(tl.uint64, bitcast=True) * _GOLDEN
    z = (z ^ (z >> 30)) * _FIRST_FACTOR
    z = (z ^ (z >> 27)) * _SECOND_FACTOR
    top = ((z ^ (z >> 31)) >> 40).to(tl.int64)
    return (mass >> 24) * top + (((mass & 0xFFFFFF) * top) >> 24)
