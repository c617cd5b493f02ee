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
        """`[N]` to `[count]`. Accumulated in float64: one after another, thousands of float32 would lose digits."""
        return add_up(values, self.place, self.count)

    def lowest(self, values: Tensor) -> Tensor:
        """`[N]` to `[count]`."""
        return values.new_zeros(self.count).scatter_reduce(0, self.place, values, "amin", include_self=False)

    def spread(self, per_segment: Tensor) -> Tensor:
        """`[count]` to `[N]`: each element gets its segment's value."""
        return per_segment[self.place]


def add_up(values: Tensor, place: Tensor, count: int) -> Tensor:
    """Sums of the floats `[N]` at each place, `[count]`, in their dtype, accumulated in float64."""
    total = values.new_zeros(count, dtype=torch.float64)
    return total.index_add(0, place, values.double()).to(values.dtype)


def rows_of(sample_index: Tensor, samples: int) -> Tensor:
    """int64 `[N]`: which row of a tensor `[samples]` belongs to each token's sample.

    Rows are in the order of the index. When it names as many distinct samples as there are rows, whatever its
    numbers, the lowest is row 0; with fewer (samples without a single token), it must be the row itself.
    Raises ValueError where neither holds.
    """
    segments = Segments.of(sample_index)
    if segments.count == samples:
        return segments.place
    if segments.count and (int(sample_index.min()) < 0 or int(sample_index.max()) >= samples):
        raise ValueError(
            f"sample_index names {segments.count} samples, from {int(sample_index.min())} to "
            f"{int(sample_index.max())}, for {samples} rows; give one row per sample, or index 0 to {samples - 1}"
        )
    return sample_index.long()


def discounted_sums(values: Tensor, index: Tensor, factor: float) -> Tensor:
    """`[M]`: x_t + factor x_(t+1) + factor^2 x_(t+2) + ... up to the last element of the same index.

    Elements of one index stand together. Spans double, so that it takes log2 of the longest many passes.
    """
    total, reach = values, 1
    while reach < index.numel():
        same = index[reach:] == index[:-reach]
        if not bool(same.any()):
            break
        ahead = torch.where(same, factor * total[reach:], torch.zeros_like(total[reach:]))
        total = torch.cat([total[:-reach] + ahead, total[-reach:]])
        reach, factor = 2 * reach, factor * factor
    return total
