"""`headrace rm` and `headrace dpo`: training on pairs of a chosen and a rejected response."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.losses import PairLoss, preference, reward_ranking
from headrace.algorithms.losses.pairs import Preference
from headrace.algorithms.pieces import not_a_pair_loss
from headrace.config import DPOConfig, RMConfig
from headrace.config.data import SourceConfig
from headrace.config.values.name_or_function import is_own
from headrace.controller.begin import Begin
from headrace.controller.stopping import StopFlag
from headrace.models.loading import load_causal_lm, load_value_model, save_reward_model
from headrace.models.packing import MicroBatch, pack
from headrace.models.values import sample_scores
from headrace.observe.offline.listeners import NOBODY, OfflineListeners
from headrace.offline.demonstrations import read_pairs
from headrace.offline.loop import OfflineResult, Report, Source, Unit, look_at, micro_batches, run_offline
from headrace.offline.output import OutputFolder
from headrace.offline.pair_stats import of_preference, of_scores
from headrace.offline.recorder import OfflineView
from headrace.training.own_functions import load_piece
from headrace.training.protocol import LossTerms, Scalar, Trainer
from headrace.training.trainer import HFTrainer

_PREFERENCE = ("logprobs", "reference", "mask", "sample_index")


def run_dpo(
    config: DPOConfig,
    out: Path,
    *,
    begin: Begin = "new",
    report: Report,
    now: Callable[[], float],
    stop: StopFlag | None = None,
    view: OfflineView | None = None,
    listeners: OfflineListeners = NOBODY,
) -> OfflineResult:
    """See `run_offline`; losses are means over pairs. The reference's log-probs are computed once, at the start."""
    output = OutputFolder(out)
    own = load_piece("loss", config.loss, (*_PREFERENCE, "pair_index", "chosen"), not_a_pair_loss)
    source = look_at(config, output)
    loss = own or partial(
        preference,
        beta=config.beta,
        kind=cast(Preference, config.loss),
        label_smoothing=config.label_smoothing,
        per_length=config.per_length,
    )

    def objective(logprobs: Tensor, micro: MicroBatch) -> LossTerms:
        reference = micro.columns["reference"]
        pairs = loss(logprobs, reference, micro.mask, micro.sample_index, *_of_samples(micro))
        return _terms(pairs, of_preference(logprobs, reference, micro, beta=config.beta, per_length=config.per_length))

    def make(steps: int) -> HFTrainer:
        return HFTrainer(
            load_causal_lm(config.model.path, dtype=torch.float32, device=source.device),
            config=config.trainer,
            loss=objective,
            total_steps=steps,
            dtype=getattr(torch, config.model.dtype),
            gradient_checkpointing=config.model.gradient_checkpointing,
            tokenizer=lambda: source.tokenizer,
            seed=config.seed,
        )

    def with_reference(trainer: Trainer, units: Sequence[Unit]) -> Sequence[Unit]:
        """Under the weights that training begins with."""
        done: list[Unit] = list(units)
        for places in micro_batches(units, config.trainer.max_tokens_per_microbatch):
            rows = [row for place in places for row in units[place]]
            values = trainer.logprobs(pack(rows)).cpu().numpy()
            parts = iter(np.split(values, np.cumsum([len(row) for row in rows])[:-1]))
            for place in places:
                done[place] = [replace(row, columns={**row.columns, "reference": next(parts)}) for row in units[place]]
        return done

    units, held_out = _units(config, source, config.data.sources), _held_out(config, source)
    return run_offline(
        config,
        output,
        units,
        per_batch=config.trainer.pairs_per_batch,
        make_trainer=make,
        prepare=with_reference,
        held_out=held_out,
        measure=lambda trainer, micro: objective(trainer.outputs(micro), micro),
        begin=begin,
        report=report,
        now=now,
        stop=stop,
        view=view,
        listeners=listeners,
    )


def run_rm(
    config: RMConfig,
    out: Path,
    *,
    begin: Begin = "new",
    report: Report,
    now: Callable[[], float],
    stop: StopFlag | None = None,
    view: OfflineView | None = None,
    listeners: OfflineListeners = NOBODY,
) -> OfflineResult:
    """See `run_offline`; losses are means over pairs. What comes out is a sequence classifier of one class: the score
    at a response's last token."""
    output = OutputFolder(out)
    own = load_piece("loss", config.loss, ("scores", "pair_index", "chosen"), not_a_pair_loss)
    source = look_at(config, output)
    loss = own or partial(reward_ranking, margin=config.margin)

    def objective(outputs: Tensor, micro: MicroBatch) -> LossTerms:
        scores = outputs[micro.sequence_starts[1:].to(outputs.device) - 1]
        return _terms(loss(scores, *_of_samples(micro)), of_scores(scores))

    def make(steps: int) -> HFTrainer:
        return HFTrainer(
            load_value_model(config.model.path, dtype=torch.float32, device=source.device),
            config=config.trainer,
            loss=objective,
            total_steps=steps,
            dtype=getattr(torch, config.model.dtype),
            gradient_checkpointing=config.model.gradient_checkpointing,
            tokenizer=lambda: source.tokenizer,
            seed=config.seed,
            outputs=sample_scores,
        )

    def export(trainer: Trainer, path: Path) -> None:
        assert isinstance(trainer, HFTrainer)
        save_reward_model(trainer.model, source.tokenizer, path)

    units, held_out = _units(config, source, config.data.sources), _held_out(config, source)
    return run_offline(
        config,
        output,
        units,
        per_batch=config.trainer.pairs_per_batch,
        make_trainer=make,
        export=export,
        held_out=held_out,
        measure=lambda trainer, micro: objective(trainer.outputs(micro), micro),
        begin=begin,
        report=report,
        now=now,
        stop=stop,
        view=view,
        listeners=listeners,
    )


def _held_out(config: RMConfig | DPOConfig, source: Source) -> list[Unit]:
    sources = config.data.held_out
    return _units(config, source, sources)[: config.evaluation.max_rows] if sources else []


def _units(config: RMConfig | DPOConfig, source: Source, sources: Sequence[SourceConfig]) -> list[Unit]:
    """A pair a unit: the chosen one, the rejected one."""
    pairs = read_pairs(
        config.data,
        source.tokenizer,
        sources=sources,
        end_token_id=source.end_token_id,
        max_context=source.max_context,
        template=source.template,
        compares=not is_own(config.loss),
    )
    return [list(pair) for pair in pairs]


def _of_samples(micro: MicroBatch) -> tuple[Tensor, Tensor]:
    """Of each sample: the index of its pair, and whether it is the chosen one. Units are whole, in their order; the
    same pair may be there twice, where a batch goes over the end of the data."""
    sample = torch.arange(micro.num_samples, device=micro.tokens.device)
    return sample // 2, sample % 2 == 0


def _terms(loss: PairLoss, stats: dict[str, Scalar]) -> LossTerms:
    return LossTerms(numerator=loss.per_pair.sum(), denominator=loss.per_pair.numel(), stats=stats)
