"""The models of `headrace rm` and `headrace dpo`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor

from headrace.algorithms.losses import PairLoss, preference, reward_ranking
from headrace.algorithms.losses.pairs import Preference
from headrace.algorithms.pieces import not_a_pair_loss
from headrace.config import DPOConfig, RMConfig
from headrace.models.loading import load_tokenizer
from headrace.models.packing import MicroBatch
from headrace.models.values import sample_scores
from headrace.offline.pair_stats import of_preference, of_scores
from headrace.offline.trained.reward_model_files import RewardModelFiles
from headrace.offline.trained.trained_model import LANGUAGE_MODEL, VALUE_MODEL, TrainedModel, loaded, trainer_of
from headrace.runtime.progress import working
from headrace.training.layouts.ranks import Layout
from headrace.training.own_functions import load_piece
from headrace.training.protocol import Loss, LossTerms, Scalar
from headrace.training.trainer import HFTrainer

REFERENCE = "reference"
"""Column of the log-probs under the weights that training begins with."""
_PREFERENCE = ("logprobs", "reference", "mask", "sample_index")


def preference_loss(config: DPOConfig) -> Callable[..., PairLoss]:
    """Raises ConfigError for a function of the user's that cannot be called so."""
    own = load_piece("loss", config.loss, (*_PREFERENCE, "pair_index", "chosen"), not_a_pair_loss)
    return own or partial(
        preference,
        beta=config.beta,
        kind=cast(Preference, config.loss),
        label_smoothing=config.label_smoothing,
        per_length=config.per_length,
    )


def ranking_loss(config: RMConfig) -> Callable[..., PairLoss]:
    """As `preference_loss`."""
    own = load_piece("loss", config.loss, ("scores", "pair_index", "chosen"), not_a_pair_loss)
    return own or partial(reward_ranking, margin=config.margin)


def preference_model(config: DPOConfig, device: torch.device, steps: int, layout: Layout) -> TrainedModel:
    """Of `headrace dpo`: losses are means over pairs. Raises ConfigError."""
    loss = preference_loss(config)

    def objective(logprobs: Tensor, micro: MicroBatch) -> LossTerms:
        reference = micro.columns[REFERENCE]
        # First: a loss of the user's may change what it is given.
        stats = of_preference(logprobs, reference, micro, beta=config.beta, per_length=config.per_length)
        return _terms(loss(logprobs, reference, micro.mask, micro.sample_index, *_of_samples(micro)), stats)

    model, source = loaded(LANGUAGE_MODEL, config, device, layout)
    trainer = trainer_of(config, model, objective, steps, layout, source=source, together=2)
    return TrainedModel(trainer, _measure(trainer, objective), trainer.export)


def scoring_model(config: RMConfig, device: torch.device, steps: int, layout: Layout) -> TrainedModel:
    """Of `headrace rm`: losses are means over pairs. What comes out is a sequence classifier of one class: the score at
    a response's last token. Raises ConfigError."""
    loss = ranking_loss(config)

    def objective(outputs: Tensor, micro: MicroBatch) -> LossTerms:
        scores = outputs[micro.sequence_starts[1:].to(outputs.device) - 1]
        stats = of_scores(scores)  # first, as above
        return _terms(loss(scores, *_of_samples(micro)), stats)

    model, source = loaded(VALUE_MODEL, config, device, layout)
    files = RewardModelFiles(model, getattr(torch, config.model.dtype), load_tokenizer(config.model.path))
    trainer = trainer_of(config, model, objective, steps, layout, outputs=sample_scores, source=source, together=2)
    export = partial(files.write, trainer)
    return TrainedModel(trainer, _measure(trainer, objective), export)


def _measure(trainer: HFTrainer, objective: Loss) -> Callable[[MicroBatch], LossTerms]:
    def measure(micro: MicroBatch) -> LossTerms:
        outputs = trainer.outputs(micro)
        with working("microbatch"):
            return objective(outputs, micro)

    return measure


def _of_samples(micro: MicroBatch) -> tuple[Tensor, Tensor]:
    """Of each sample: the index of its pair, and whether it is the chosen one. Units are whole, in their order; the
    same pair may be there twice, where a batch goes over the end of the data."""
    sample = torch.arange(micro.num_samples, device=micro.tokens.device)
    return sample // 2, sample % 2 == 0


def _terms(loss: PairLoss, stats: dict[str, Scalar]) -> LossTerms:
    return LossTerms(numerator=loss.per_pair.sum(), denominator=loss.per_pair.numel(), stats=stats)
