"""A model in training in this process, with what its command does with it beside steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.config import DPOConfig, RMConfig, SFTConfig
from headrace.models.file_weights import FileWeights
from headrace.models.loading import load_causal_lm, load_tokenizer, load_value_model
from headrace.models.packing import MicroBatch, PackRow, pack
from headrace.models.skeleton import Skeleton, causal_lm_skeleton, value_model_skeleton
from headrace.training.layouts.ranks import Layout
from headrace.training.merging import plain
from headrace.training.protocol import Loss, LossTerms, Written
from headrace.training.sums import BatchSums
from headrace.training.trainer import HFTrainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LANGUAGE_MODEL = load_causal_lm, causal_lm_skeleton
VALUE_MODEL = load_value_model, value_model_skeleton
"""How a kind of model is loaded, whole and without its weights."""


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """Blocking. Of several ranks that pass jointly, one without rows says so by none."""

    trainer: HFTrainer
    measure: Callable[[MicroBatch], LossTerms]
    """What the loss, and all that is told of it, is on rows that are not trained on."""
    export: Callable[[Path], Written]
    """Write the model that comes out as a folder that `transformers` loads: of several ranks each what it has."""

    def accumulate(self, rows: Sequence[PackRow]) -> None:
        """A micro-batch, there and back."""
        if rows:
            self.trainer.accumulate(pack(rows))
        else:
            self.trainer.idle(trains=True)

    def measured(self, rows: Sequence[PackRow]) -> dict[str, Any]:
        """What `measure` gives for a micro-batch, as numbers (`merged` reads them)."""
        sums = BatchSums()
        if rows:
            micro = pack(rows)
            sums.add(self.measure(micro), micro)
        else:
            self.trainer.idle(trains=False)
        return plain(sums)

    def logprobs(self, rows: Sequence[PackRow]) -> list[NDArray[np.float32]]:
        """Of each row of a micro-batch [T] float32, under the present weights."""
        if not rows:
            self.trainer.idle(trains=False)
            return []
        found = self.trainer.logprobs(pack(rows)).cpu().numpy()
        return np.split(found, np.cumsum([len(row) for row in rows])[:-1])


def loaded(
    kind: tuple[Callable[..., PreTrainedModel], Callable[..., Skeleton | None]],
    config: SFTConfig | RMConfig | DPOConfig,
    device: torch.device,
    layout: Layout,
) -> tuple[PreTrainedModel, FileWeights | None]:
    """The model, and where a rank reads its own part of the weights, if the model has none. Raises ConfigError."""
    whole, skeleton = kind
    found = skeleton(config.model.path, device) if layout.joint else None
    return found or (whole(config.model.path, dtype=torch.float32, device=device), None)


def trainer_of(
    config: SFTConfig | RMConfig | DPOConfig,
    model: PreTrainedModel,
    loss: Loss,
    steps: int,
    layout: Layout,
    **more: Any,
) -> HFTrainer:
    """Of `model` in float32, as the config has it; `steps`: of the whole run. `more`: see `HFTrainer`."""
    return HFTrainer(
        model,
        config=config.trainer,
        loss=loss,
        total_steps=steps,
        dtype=getattr(torch, config.model.dtype),
        gradient_checkpointing=config.model.gradient_checkpointing,
        tokenizer=cache(partial(load_tokenizer, config.model.path)),
        seed=config.seed,
        layout=layout,
        **more,
    )
