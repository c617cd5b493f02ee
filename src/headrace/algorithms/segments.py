"""Sums and means over the tokens of a sample, or the samples of a group, found by index alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def as_float(values: Tensor) -> Tensor:
    """float64 as it is, anything else as float32."""
    return values if values.dtype == torch.float64 else values.float()


def keep(values: Tensor, mask: Tensor) -> Tensor:
    """`values` as floats, and 0 outside the mask, whatever stood there (a product would let NaN through)."""
    values = as_float(values)
    return torch.where(mask, values, torch.zeros_like(values))


@dataclass(frozen=True, slots=True)
class Segments:
    """A numbering of the distinct values of an index."""

    place: Tensor
    """int64 `[N]`: which segment each element belongs to, 0 ... count - 1."""
    count: int

    @staticmethod
    def of(index: Tensor) -> Segments:
        distinct, place = torch.unique(index, return_inverse=True)
        return Segments(place=place, count=distinct.numel())

    def sum(self, values: Tensor) -> Tensor:
        """`[N]` to `[count]`."""
        return values.new_zeros(self.count).index_add(0, self.place, values)

    def lowest(self, values: Tensor) -> Tensor:
        """`[N]` to `[count]`."""
        return values.new_zeros(self.count).scatter_reduce(0, self.place, values, "amin", include_self=False)

    def spread(self, per_segment: Tensor) -> Tensor:
        """`[count]` to `[N]`: each element gets its segment's value."""
        return per_segment[self.place]
