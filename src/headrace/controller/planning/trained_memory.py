"""What a model takes for its weights, and one in training for their gradients and the optimiser's moments."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headrace.config.layout import LayoutConfig, layers_of_stages
from headrace.config.pairs import PairTrainerConfig
from headrace.config.roles import CriticConfig
from headrace.config.sft import SFTTrainerConfig
from headrace.config.trainer import TrainerConfig
from headrace.config.values.dtypes import ITEM_BYTES
from headrace.controller.planning.planned_model import PlannedModel
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


def trainer_uses(own: OfTrainer, model: PlannedModel, dtype: str, device: torch.device) -> dict[str, int]:
    """Bytes by use of a trainer between and in passes, less activations: those of `trained_bytes_of`, and other weights
    that its passes need."""
    layout, itemsize = own.layout, ITEM_BYTES[dtype]
    trained = trained_bytes_of(own, model, dtype, device)
    uses = {
        "trainer: float32 weights": trained.weights,
        "trainer: gradients (float32)": trained.gradients,
        "trainer: AdamW moments (float32)": trained.moments,
    }
    if layout.stage:
        uses["trainer: weights gathered for a pass"] = itemsize * gathered(layout, model, device)
    elif dtype == "bfloat16":
        uses["trainer: bfloat16 weights"] = layout.model_replicas * itemsize * model.parameters
    return uses


def trained_bytes_of(
    own: OfTrainer | CriticConfig, model: PlannedModel, dtype: str, device: torch.device
) -> TrainedBytes:
    """`dtype`: of the passes. What other weights they need is not counted."""
    layout = own.layout
    every, fullest = of_stages(layout, model)
    one = _FLOAT32 * every * layout.model_replicas
    if layout.stage and device.type != "cpu":
        one = -(-_FLOAT32 * fullest // layout.ranks_of_pp_stage)
    if not own.optimizer.offload or device.type == "cpu":
        return TrainedBytes(one, one, 2 * one)
    if layout.stage:
        return TrainedBytes(0, 0, 0, off_device=4 * one * layout.ranks)
    return TrainedBytes(one if dtype == "float32" else 0, one, 0, off_device=3 * one)


def scored_bytes_of(layout: LayoutConfig, model: PlannedModel, dtype: str, device: torch.device) -> int:
    """Of a model that only scores, between its passes: in the host's memory of all ranks, on a device of one, which has
    it."""
    every, fullest = of_stages(layout, model)
    one = ITEM_BYTES[dtype] * (every if layout.stage else model.parameters)
    if device.type == "cpu":
        return one * layout.model_replicas
    return -(-ITEM_BYTES[dtype] * fullest // layout.ranks_of_pp_stage) if layout.stage else one


def hybrid_bytes_of(own: TrainerConfig, model: PlannedModel, dtype: str, device: torch.device) -> tuple[int, int]:
    """Of the copy that a trainer keeps of its own weights, where it computes, as `scored_bytes_of`; and in the host's
    memory beside a device. Of a model that ranks cut up it is of the masters."""
    layout = own.layout
    size = scored_bytes_of(layout, model, kept_dtype(layout, dtype), device)
    if layout.stage and own.optimizer.offload and device.type != "cpu":
        return 0, size * layout.ranks
    return size, 0


def kept_dtype(layout: LayoutConfig, dtype: str) -> str:
    """Of the copy that a trainer keeps of its own weights."""
    return "float32" if layout.stage else dtype


def gathered(layout: LayoutConfig, model: PlannedModel, device: torch.device) -> int:
    """Weights that ranks have beside their own parts at the height of a pass: all of their stage (ZeRO-2), or those of
    a layer and of what is outside of layers; of experts that ranks share, their own. All ranks in the host's memory,
    one on its device."""
    if layout.ep > 1:
        experts = model.layers * model.text.num_experts * model.expert
        model = model.less(min(experts, model.parameters) * (layout.ep - 1) // layout.ep)
    every, fullest = of_stages(layout, model)
    if layout.stage == 3:
        ends = 1 if layout.pp == 1 or model.gives_values else 2
        outside = model.outside if layout.pp == 1 else model.matrix
        every, fullest = ends * outside + layout.pp * model.layer, outside + model.layer
    return every * layout.dp * layout.cp if device.type == "cpu" else fullest


def of_stages(layout: LayoutConfig, model: PlannedModel) -> tuple[int, int]:
    """Parameters of all stages together, and of the one that has most. A matrix that is both embedding and output layer
    is in the first and in the last."""
    if layout.pp == 1:
        return model.parameters, model.parameters
    counts = stages_of(layout, model)
    first, last = counts[0] * model.layer + model.matrix, counts[-1] * model.layer
    if not model.gives_values:
        last += model.matrix
    return model.parameters + (model.matrix if model.is_tied else 0), max(first, last)


def stages_of(layout: LayoutConfig, model: PlannedModel) -> list[int]:
    """How many layers each stage has."""
    idle = model.text.num_experts - experts_per_token(model.text) if model.expert else 0
    met = model.layer - idle * model.expert  # by a token
    output = 0.0 if model.gives_values else model.matrix / max(1, met)
    return layers_of_stages(model.layers, layout.pp, output)
