"""Sampling noise as a function of (key, position): it does not depend on batch-mates, interruptions or retries.

u(key, position) = top 24 bits of mix(mix(key) + GOLDEN x (position + 1)), divided by 2^24, where `mix` is the output
function of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014) and every sum
and product is taken modulo 2^64.
"""

from __future__ import annotations

import torch

_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def stream_of(noise_key: int) -> int:
    """mix(key) as a signed 64-bit integer: what `uniform` takes. Keys are taken modulo 2^64."""
    z = noise_key & _MASK
    z = ((z ^ (z >> 30)) * _MULTIPLIERS[0]) & _MASK
    z = ((z ^ (z >> 27)) * _MULTIPLIERS[1]) & _MASK
    return _signed(z ^ (z >> 31))


def uniform(streams: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Float32 in [0, 1), shape [n], from int64 `streams` (see `stream_of`) and int64 token positions, both [n].

    24 bits: every value is exact in float32, and the greatest is below 1.
    """
    z = torch.add(streams, positions + 1, alpha=_signed(_GOLDEN))
    z = (z ^ _shift(z, 30)) * _signed(_MULTIPLIERS[0])
    z = (z ^ _shift(z, 27)) * _signed(_MULTIPLIERS[1])
    z = z ^ _shift(z, 31)
    return _shift(z, 40).to(torch.float32) * 2.0**-24


def _shift(z: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift: torch's is arithmetic, so the copies of the sign are masked off."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(z: int) -> int:
    return z - (1 << 64) if z >> 63 else z
