"""Rotary position embedding from a table (Su et al., "RoFormer", arXiv:2104.09864), in the halves' layout of Llama."""

from __future__ import annotations

import torch

from headrace.engines.embedded.cache import KeyValueCache


class RotaryTable:
    """Cosines, and sines with the sign of `rotate_half` in them: x turned = x * cos + roll(x, d / 2) * sin.

    Float32 angles, stored in the cache's dtype; made for as many positions as the cache has room for.
    """

    def __init__(self, inv_freq: torch.Tensor, scaling: float, cache: KeyValueCache) -> None:
        """`inv_freq` [d / 2] and the factor on both functions, as the model's own embedding has them."""
        self._inv_freq = inv_freq.detach().float()
        self._scaling = scaling
        self._cache = cache
        self._table = self._make(cache.capacity)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both [N, 1, d] for int64 positions [N]."""
        cos, sin = self.table()[positions].chunk(2, dim=1)
        return cos, sin

    def table(self) -> torch.Tensor:
        """[positions, 2, d]: cosines and sines."""
        if len(self._table) < self._cache.capacity:
            self._table = self._make(self._cache.capacity)
        return self._table

    def _make(self, length: int) -> torch.Tensor:
        """[length, 2, d]"""
        positions = torch.arange(length, device=self._inv_freq.device, dtype=torch.float32)
        angles = positions[:, None] * self._inv_freq
        cos, sin = angles.cos() * self._scaling, angles.sin() * self._scaling
        rows = torch.stack([torch.cat([cos, cos], dim=1), torch.cat([-sin, sin], dim=1)], dim=1)
        return rows.to(self._cache.dtype)
