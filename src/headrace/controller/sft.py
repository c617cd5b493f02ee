"""`headrace sft`: supervised fine-tuning on demonstrations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from headrace.algorithms.aggregation import aggregate
from headrace.algorithms.losses import Loss, sft
from headrace.algorithms.pieces import not_a_loss
from headrace.config import SFTConfig
from headrace.controller.demonstrations import read_demonstrations
from headrace.controller.offline import OfflineResult, Report, look_at, run_offline
from headrace.controller.output import Begin, OutputFolder
from headrace.controller.pieces import load_piece
from headrace.controller.stopping import StopFlag
from headrace.models.loading import load_causal_lm
from headrace.models.packing import MicroBatch
from headrace.training.protocol import LossTerms
from headrace.training.trainer import HFTrainer


def run_sft(
    config: SFTConfig,
    out: Path,
    *,
    begin: Begin = "new",
    report: Report,
    now: Callable[[], float],
    stop: StopFlag | None = None,
) -> OfflineResult:
    """See `run_offline`; losses are mean negative log-likelihoods of a response token, in nats."""
    output = OutputFolder(out)
    loss = load_piece("loss", config.loss, ("logprobs", "mask", "sample_index"), not_a_loss) or _likelihood
    source = look_at(config, output)
    rows = read_demonstrations(
        config.data, source.tokenizer, end_token_id=source.end_token_id, max_context=source.max_context
    )

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
            tokenizer=source.tokenizer,
            seed=config.seed,
        )

    units = [[row] for row in rows]
    return run_offline(
        config,
        output,
        units,
        per_batch=config.trainer.samples_per_batch,
        make_trainer=make,
        begin=begin,
        report=report,
        now=now,
        stop=stop,
    )


def _likelihood(logprobs: Tensor, mask: Tensor, sample_index: Tensor) -> Loss:
    return sft(logprobs, mask)
