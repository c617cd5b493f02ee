"""Two sets of weights that change places for a while, so that there is no third."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def exchanged(own: Sequence[Tensor], others: Sequence[Tensor]) -> Iterator[None]:
    """Within, each of `own` has the numbers of its counterpart among `others`, of the same shape and dtype, in the same
    place, and that one has its. Takes the memory of the largest of them."""
    if not own:
        yield
        return
    # Made before anything is changed, and kept for the way back: there may be no room for it.
    beside = own[0].new_empty(max(tensor.numel() for tensor in own), requires_grad=False)

    @torch.no_grad()
    def exchange() -> None:
        for one, other in zip(own, others, strict=True):
            kept = beside[: one.numel()].view(one.shape)
            kept.copy_(one)
            one.copy_(other)
            other.copy_(kept)

    exchange()
    try:
        yield
    finally:
        exchange()
