"""Pieces of tensors: what one rank has of a tensor that several have together."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Piece:
    tensor: Tensor
    """What this rank has: a box within the whole."""
    whole: tuple[int, ...]
    """Shape of the whole."""
    begin: tuple[int, ...]
    """Where the box begins."""
    is_first: bool = True
    """Of ranks that have the same box, one has the first."""

    @classmethod
    def of_whole(cls, tensor: Tensor) -> Piece:
        return cls(tensor, tuple(tensor.shape), (0,) * tensor.dim())

    @property
    def box(self) -> tuple[slice, ...]:
        """What this is of the whole."""
        return tuple(slice(begin, begin + length) for begin, length in zip(self.begin, self.tensor.shape, strict=True))

    def common(self, begin: tuple[int, ...], shape: tuple[int, ...]) -> tuple[slice, ...] | None:
        """The box that it has in common with another, as slices of the whole; None without any."""
        ends = zip(self.begin, self.tensor.shape, begin, shape, strict=True)
        found = tuple(slice(max(a, b), min(a + n, b + m)) for a, n, b, m in ends)
        return None if any(each.start >= each.stop for each in found) else found

    def within(self, box: tuple[slice, ...]) -> tuple[slice, ...]:
        """A box of the whole, as slices of `tensor`."""
        return tuple(slice(each.start - b, each.stop - b) for each, b in zip(box, self.begin, strict=True))
