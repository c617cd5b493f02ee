"""What a model takes for its weights, and one in training for their gradients and the optimiser's moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from headrace.config.layout import LayoutConfig, layers_of_stages
from headrace.config.pairs import PairTrainerConfig
from headrace.config.roles import CriticConfig
from headrace.config.sft import SFTTrainerConfig
from headrace.config.trainer import TrainerConfig
from headrace.config.values.dtypes import ITEM_BYTES
from headrace.models.experts import experts_per_token

OfTrainer = TrainerConfig | SFTTrainerConfig | PairTrainerConfig

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


def trainer_uses(own: OfTrainer, parameters: int, text: Any, dtype: str, device: torch.device) -> dict[str, int]:
    """Bytes by use of a trainer between and in passes, less activations: those of `trained_bytes_of`, and other weights
    that its passes need."""
    layout, itemsize = own.layout, ITEM_BYTES[dtype]
    trained = trained_bytes_of(own, parameters, text, dtype, device)
    uses = {
        "trainer: float32 weights": trained.weights,
        "trainer: gradients (float32)": trained.gradients,
        "trainer: AdamW moments (float32)": trained.moments,
    }
    if layout.stage:
        uses["trainer: weights gathered for a pass"] = itemsize * gathered(layout, parameters, text, device)
    elif dtype == "bfloat16":
        uses["trainer: bfloat16 weights"] = layout.model_replicas * itemsize * parameters
    return uses


def trained_bytes_of(
    own: OfTrainer | CriticConfig, parameters: int, text: Any, dtype: str, device: torch.device
) -> TrainedBytes:
    """Of a model of so many `parameters`; `text`: its config. `dtype`: of the passes. What other weights they need is
    not counted."""
    layout = own.layout
    every, fullest = of_stages(layout, parameters, text)
    one = _FLOAT32 * every * layout.model_replicas
    if layout.stage and device.type != "cpu":
        one = -(-_FLOAT32 * fullest // layout.ranks_of_pp_stage)
    if not own.optimizer.offload or device.type == "cpu":
        return TrainedBytes(one, one, 2 * one)
    if layout.stage:
        return TrainedBytes(0, 0, 0, off_device=4 * one * layout.ranks)
    return TrainedBytes(one if dtype == "float32" else 0, one, 0, off_device=3 * one)


def scored_bytes_of(layout: LayoutConfig, parameters: int, text: Any, dtype: str, device: torch.device) -> int:
    """Of a model of so many `parameters` that only scores, between its passes: in the host's memory of all ranks, on a
    device of one, which has it."""
    every, fullest = of_stages(layout, parameters, text)
    one = ITEM_BYTES[dtype] * (every if layout.stage else parameters)
    if device.type == "cpu":
        return one * layout.model_replicas
    return -(-ITEM_BYTES[dtype] * fullest // layout.ranks_of_pp_stage) if layout.stage else one


def gathered(layout: LayoutConfig, parameters: int, text: Any, device: torch.device) -> int:
    """Weights that ranks have beside their own parts at the height of a pass: all of their stage (ZeRO-2), or those of
    a layer and of what is outside of layers; of experts that ranks share, their own. All ranks in the host's memory,
    one on its device."""
    if layout.ep > 1:
        experts = text.num_hidden_layers * text.num_experts * _expert(text)
        parameters -= min(experts, parameters) * (layout.ep - 1) // layout.ep
    every, fullest = of_stages(layout, parameters, text)
    if layout.stage == 3:
        ends = min(layout.pp, 2)
        outside = _outside(parameters, text) if ends == 1 else _matrix(text)
        layer = _layer(parameters, text)
        every, fullest = ends * outside + layout.pp * layer, outside + layer
    return every * layout.dp * layout.cp if device.type == "cpu" else fullest


def of_stages(layout: LayoutConfig, parameters: int, text: Any) -> tuple[int, int]:
    """Parameters of all stages together, and of the one that has most. A matrix that is both embedding and output layer
    is in the first and in the last."""
    if layout.pp == 1:
        return parameters, parameters
    layer, counts = _layer(parameters, text), stages_of(layout, parameters, text)
    twice = _matrix(text) if text.tie_word_embeddings else 0
    return parameters + twice, max(counts[0], counts[-1]) * layer + _matrix(text)


def stages_of(layout: LayoutConfig, parameters: int, text: Any, *, scores: bool = False) -> list[int]:
    """How many layers each stage has. `scores`: the output layer gives a number, not one for each token."""
    idle = text.num_experts - experts_per_token(text) if experts_per_token(text) else 0
    met = _layer(parameters, text) - idle * _expert(text)  # by a token
    output = 0.0 if scores else _matrix(text) / max(1, met)
    return layers_of_stages(int(text.num_hidden_layers), layout.pp, output)


def _layer(parameters: int, text: Any) -> int:
    return (parameters - _outside(parameters, text)) // max(1, int(text.num_hidden_layers))


def _matrix(text: Any) -> int:
    return int(text.vocab_size) * int(text.hidden_size)


def _expert(text: Any) -> int:
    return int(3 * text.moe_intermediate_size * text.hidden_size) if experts_per_token(text) else 0


def _outside(parameters: int, text: Any) -> int:
    return min(_matrix(text) * (1 if text.tie_word_embeddings else 2), parameters)
