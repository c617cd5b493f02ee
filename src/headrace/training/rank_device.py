"""Which device a rank's worker computes on."""

from __future__ import annotations

import torch


def rank_device(first: str, rank: int) -> torch.device:
    """The one of this rank, where ranks have CUDA devices of their own, from `first` on. One that a cluster gives a
    worker is all that it sees."""
    device = torch.device(first)
    if device.type != "cuda" or not rank or torch.cuda.device_count() == 1:
        return device
    return torch.device("cuda", (device.index or 0) + rank)
