"""The model of `headrace sft`."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from headrace.algorithms.aggregation import aggregate
from headrace.algorithms.losses import Loss, sft
from headrace.algorithms.pieces import not_a_loss
from headrace.config import SFTConfig
from headrace.models.logprobs import token_columns
from headrace.models.packed_lm import PackedLM
from headrace.models.packing import MicroBatch
from headrace.offline.trained.trained_model import LANGUAGE_MODEL, TrainedModel, loaded, trainer_of
from headrace.runtime.progress import working
from headrace.training.layouts.ranks import Layout
from headrace.training.own_functions import load_piece
from headrace.training.protocol import LossTerms


class TokenLoss(Protocol):
    def __call__(self, logprobs: Tensor, mask: Tensor, sample_index: Tensor, /) -> Loss:
        """[N] each."""


def demonstrations_loss(config: SFTConfig) -> TokenLoss:
    """Raises ConfigError for a function of the user's that cannot be called so."""
    own = load_piece("loss", config.loss, ("logprobs", "mask", "sample_index"), not_a_loss)
    return own or (lambda logprobs, mask, sample_index: sft(logprobs, mask))


def demonstrations_model(config: SFTConfig, device: torch.device, steps: int, layout: Layout) -> TrainedModel:
    """Losses are mean negative log-likelihoods of a response token, in nats. Raises ConfigError."""
    loss = demonstrations_loss(config)

    def objective(logprobs: Tensor, micro: MicroBatch) -> LossTerms:
        per_token = loss(logprobs, micro.mask, micro.sample_index).per_token
        numerator, denominator = aggregate(per_token, micro.mask, micro.sample_index)
        return LossTerms(numerator=numerator, denominator=denominator)

    model, source = loaded(LANGUAGE_MODEL, config, device, layout)
    trainer = trainer_of(config, model, objective, steps, layout, source=source)

    def measure(micro: MicroBatch) -> LossTerms:
        """With how many tokens of the responses are the model's first choice."""
        logprobs, first = trainer.outputs(micro, _with_first_choice).unbind(1)
        stats = {"tokens": micro.mask.sum(), "accuracy": first.sum()}
        with working("microbatch"):
            return replace(objective(logprobs, micro), stats=dict(stats))

    return TrainedModel(trainer, measure, trainer.export)


def _with_first_choice(lm: PackedLM, micro: MicroBatch) -> Tensor:
    return token_columns(lm, micro, ("logprob", "first_choice"))
