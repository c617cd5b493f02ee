"""Which model a config of an offline trainer is about."""

from __future__ import annotations

import torch

from headrace.config import DPOConfig, RMConfig, SFTConfig
from headrace.offline.trained.of_demonstrations import demonstrations_model
from headrace.offline.trained.of_pairs import preference_model, scoring_model
from headrace.offline.trained.trained_model import TrainedModel
from headrace.training.layouts.ranks import WHOLE, Layout

OfflineConfig = SFTConfig | RMConfig | DPOConfig


def model_of(config: OfflineConfig, device: torch.device, steps: int, layout: Layout = WHOLE) -> TrainedModel:
    """Loaded, as one rank of `layout`; `steps`: of the whole run. Raises ConfigError."""
    if isinstance(config, SFTConfig):
        return demonstrations_model(config, device, steps, layout)
    if isinstance(config, DPOConfig):
        return preference_model(config, device, steps, layout)
    return scoring_model(config, device, steps, layout)
