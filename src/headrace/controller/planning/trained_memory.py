"""What a model in training takes for its weights, their gradients and the optimiser's moments."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headrace.config.roles import CriticConfig
from headrace.config.trainer import TrainerConfig

_FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class TrainedBytes:
    """In float32, where the model computes: in the host's memory of all ranks, on a device of one, which has it."""

    weights: int
    gradients: int
    moments: int
    off_device: int = 0
    """Of all ranks, in the host's memory beside a device."""

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.moments


def trained_bytes_of(
    own: TrainerConfig | CriticConfig, parameters: int, dtype: str, device: torch.device
) -> TrainedBytes:
    """`dtype`: of the passes. What other weights they need is not counted."""
    one, layout = _FLOAT32 * parameters, own.layout
    if layout.stage and device.type != "cpu":
        one = -(-one // layout.ranks)
    elif not layout.stage:
        one *= layout.dp
    if not own.optimizer.offload or device.type == "cpu":
        return TrainedBytes(one, one, 2 * one)
    if layout.stage:
        return TrainedBytes(0, 0, 0, off_device=4 * one * layout.ranks)
    return TrainedBytes(one if dtype == "float32" else 0, one, 0, off_device=3 * one)
