"""With how many threads torch computes on a CPU."""

from __future__ import annotations


def set_threads(count: int) -> None:
    """Torch keeps the number for each calling thread."""
    import torch

    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
