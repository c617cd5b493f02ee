"""A reward whose file imports torch, as one with a model or tensors does."""

from __future__ import annotations

import torch


def reward(response: str, row: dict[str, object]) -> float:
    """1, and nothing is computed."""
    return 1.0 + torch.is_tensor(response)
