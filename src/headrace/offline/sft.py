"""`headrace sft`: supervised fine-tuning on demonstrations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from headrace.algorithms.aggregation import aggregate
from headrace.algorithms.losses import Loss, sft
from headrace.algorithms.pieces import not_a_loss
from headrace.config import SFTConfig
from headrace.config.data import SourceConfig
from headrace.controller.begin import Begin
from headrace.controller.stopping import StopFlag
from headrace.models.loading import load_causal_lm
from headrace.models.logprobs import token_columns
from headrace.models.packed_lm import PackedLM
from headrace.models.packing import MicroBatch, PackRow
from headrace.observe.offline.listeners import NOBODY, OfflineListeners
from headrace.offline.conversations import read_conversations
from headrace.offline.demonstrations import read_demonstrations
from headrace.offline.loop import OfflineResult, Report, Source, Unit, look_at, run_offline
from headrace.offline.output import OutputFolder
from headrace.offline.recorder import OfflineView
from headrace.training.own_functions import load_piece
from headrace.training.protocol import LossTerms, Trainer
from headrace.training.trainer import HFTrainer


def run_sft(
    config: SFTConfig,
    out: Path,
    *,
    begin: Begin = "new",
    report: Report,
    now: Callable[[], float],
    stop: StopFlag | None = None,
    view: OfflineView | None = None,
    listeners: OfflineListeners = NOBODY,
) -> OfflineResult:
    """See `run_offline`; losses are mean negative log-likelihoods of a response token, in nats."""
    output = OutputFolder(out)
    loss = load_piece("loss", config.loss, ("logprobs", "mask", "sample_index"), not_a_loss) or _likelihood
    source = look_at(config, output)
    units = _units(config, source, config.data.sources)
    held_out = _units(config, source, config.data.held_out)[: config.evaluation.max_rows]

    def objective(logprobs: Tensor, micro: MicroBatch) -> LossTerms:
        per_token = loss(logprobs, micro.mask, micro.sample_index).per_token
        numerator, denominator = aggregate(per_token, micro.mask, micro.sample_index)
        return LossTerms(numerator=numerator, denominator=denominator)

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

    def measure(trainer: Trainer, micro: MicroBatch) -> LossTerms:
        """With how many tokens of the responses are the model's first choice."""
        logprobs, first = trainer.outputs(micro, _with_first_choice).unbind(1)
        stats = {"tokens": micro.mask.sum(), "accuracy": first.sum()}
        return replace(objective(logprobs, micro), stats=dict(stats))

    return run_offline(
        config,
        output,
        units,
        per_batch=config.trainer.samples_per_batch,
        make_trainer=make,
        held_out=held_out,
        measure=measure,
        begin=begin,
        report=report,
        now=now,
        stop=stop,
        view=view,
        listeners=listeners,
    )


def _units(config: SFTConfig, source: Source, sources: Sequence[SourceConfig]) -> list[Unit]:
    """A sample a unit."""
    return [[row] for row in _rows(config, source, sources)] if sources else []


def _rows(config: SFTConfig, source: Source, sources: Sequence[SourceConfig]) -> list[PackRow]:
    if config.data.messages_column is not None:
        return read_conversations(
            config.data,
            source.template,
            sources=sources,
            roles=config.loss_roles,
            turns=config.loss_turns,
            end_token_id=source.end_token_id,
            stop_token_ids=source.stop_token_ids,
            max_context=source.max_context,
        )
    return read_demonstrations(
        config.data,
        source.tokenizer,
        sources=sources,
        end_token_id=source.end_token_id,
        max_context=source.max_context,
        template=source.template,
    )


def _with_first_choice(lm: PackedLM, micro: MicroBatch) -> Tensor:
    return token_columns(lm, micro, ("logprob", "first_choice"))


def _likelihood(logprobs: Tensor, mask: Tensor, sample_index: Tensor) -> Loss:
    return sft(logprobs, mask)
