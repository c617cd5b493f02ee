"""The fastest way for weights that both ends have."""

from __future__ import annotations

import torch

from headrace.config import ConfigError, TrainConfig
from headrace.weights.transport import Transport


def transport_of(config: TrainConfig, device: torch.device) -> Transport:
    """How a run on `device` publishes weights. Raises ConfigError for what cannot be there."""
    asked = config.transport
    if asked == "cuda_ipc" and device.type != "cuda":
        raise ConfigError(
            f"weights.transport is cuda_ipc, which is for models on a CUDA device, and these are on {device}; use shm, "
            "or leave weights.transport out"
        )
    layout = config.trainer.layout
    if asked == "cuda_ipc" and layout.stage:
        raise ConfigError(
            f"weights.transport is cuda_ipc, and trainer.layout is {layout.text}, whose ranks have parts of them, "
            "each on a device of its own; use shm, or leave weights.transport out"
        )
    given, here = config.weights.transport is not None, config.runtime.kind != "ray"
    turns = config.engine.colocated or config.engine.lent  # two versions on the device are no way to have room there
    own = device.type == "cuda" and not layout.stage and not config.engine.has_server
    if asked == "shm" and not given and here and not turns and own:
        return "cuda_ipc"
    return asked
