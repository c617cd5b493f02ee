"""The loop of the offline trainers: batches of a fixed dataset, in a seeded order, one optimiser step each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from headrace.config import ConfigError, SFTConfig
from headrace.controller.demonstrations import read_demonstrations
from headrace.controller.output import OutputFolder
from headrace.controller.threads import available_threads
from headrace.experience.dataset import PromptOrder
from headrace.models.folder import check_weights
from headrace.models.loading import (
    load_causal_lm,
    load_tokenizer,
    read_generation_stops,
    read_model_config,
    resolve_device,
)
from headrace.models.packing import MicroBatch, PackRow, pack, plan_microbatches
from headrace.training.protocol import LossTerms, Trainer
from headrace.training.trainer import HFTrainer

_REPORTS = 20


@dataclass(frozen=True, slots=True)
class SFTResult:
    model: Path
    """Folder that `transformers` loads."""
    steps: int
    skipped_steps: int
    """Steps whose gradient was not finite: the weights stayed."""
    first_loss: float
    last_loss: float
    """Mean negative log-likelihood of a response token, in nats."""
    tokens: int
    """Forwarded: prompts and responses."""
    trained_tokens: int
    wall_s: float
    """Of training alone."""


def token_mean_nll(outputs: Tensor, micro: MicroBatch) -> LossTerms:
    """-sum of log-probs [N] / number of tokens, over the tokens in the mask."""
    return LossTerms(numerator=-outputs.sum(), denominator=micro.mask.sum())


def run_sft(
    config: SFTConfig, out: Path, *, report: Callable[[int, float, float], None], now: Callable[[], float]
) -> SFTResult:
    """Fine-tune on demonstrations; write `out`/model and `out`/summary.json, over what is there.

    `report` is called some twenty times, with the steps done, the loss of the last one, and tokens/s since the call
    before. `now`: monotonic seconds. Raises ConfigError for bad input and for a folder that cannot be written, before
    the model is loaded; DiskFull or another StoreError if the model cannot be saved.
    """
    output = OutputFolder(out)
    source = Path(config.model.path).expanduser()
    if source.exists() and source.resolve() == output.model.resolve():
        raise ConfigError(f"{output.model} is the model to begin from, and would be overwritten; give another --dir")
    device = resolve_device(config.model.device)
    check_weights(config.model.path)
    tokenizer = load_tokenizer(config.model.path)
    stops = read_generation_stops(config.model.path, tokenizer)
    if not stops:
        raise ConfigError(
            f"the tokenizer and the config of model {config.model.path!r} name no end-of-sequence token, so the model "
            "could not learn to stop; set eos_token in the tokenizer"
        )
    end = stops[0] if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    context = getattr(read_model_config(config.model.path).get_text_config(), "max_position_embeddings", None)
    rows = read_demonstrations(config.data, tokenizer, end_token_id=end, max_context=context)
    steps = config.trainer.steps or math.ceil(len(rows) / config.trainer.samples_per_batch)
    output.claim()
    torch.set_num_threads(available_threads(config.runtime.threads))
    trainer = HFTrainer(
        load_causal_lm(config.model.path, dtype=torch.float32, device=device),
        config=config.trainer,
        loss=token_mean_nll,
        total_steps=steps,
        dtype=getattr(torch, config.model.dtype),
        gradient_checkpointing=config.model.gradient_checkpointing,
        tokenizer=tokenizer,
        seed=config.seed,
    )
    order = PromptOrder(len(rows), config.seed, config.data.shuffle)
    batches = _batches(rows, order, samples=config.trainer.samples_per_batch, steps=steps)
    result = _train(trainer, batches, output.model, steps, config.trainer.max_tokens_per_microbatch, report, now)
    output.replace_model(trainer.export)
    output.write_summary({"status": "finished", **asdict(result), "model": str(output.model), "seed": config.seed})
    return result


def _batches(rows: Sequence[PackRow], order: PromptOrder, *, samples: int, steps: int) -> Iterator[list[PackRow]]:
    """`steps` batches of `samples` rows, pass after pass over the data; a single pass may end with a short batch."""
    total = steps * samples
    if total - len(rows) in range(1, samples):
        total = len(rows)
    for start in range(0, total, samples):
        places = (divmod(place, len(rows)) for place in range(start, min(start + samples, total)))
        yield [rows[order.row(epoch, position)] for epoch, position in places]


def _train(
    trainer: Trainer,
    batches: Iterator[list[PackRow]],
    target: Path,
    steps: int,
    max_tokens: int,
    report: Callable[[int, float, float], None],
    now: Callable[[], float],
) -> SFTResult:
    losses: list[float] = []
    skipped = tokens = trained = tokens_reported = 0
    start = reported = now()
    every = max(1, steps // _REPORTS)
    for step, batch in enumerate(batches, start=1):
        for indices in plan_microbatches([len(row) for row in batch], max_tokens):
            trainer.accumulate(pack([batch[index] for index in indices]))
        done = trainer.step()
        losses.append(done.loss)
        skipped += done.skipped
        tokens += done.forwarded_tokens
        trained += done.trained_tokens
        if step % every == 0 or step == steps:
            time = now()
            report(step, done.loss, (tokens - tokens_reported) / max(time - reported, 1e-9))
            reported, tokens_reported = time, tokens
    return SFTResult(
        model=target,
        steps=len(losses),
        skipped_steps=skipped,
        first_loss=losses[0],
        last_loss=losses[-1],
        tokens=tokens,
        trained_tokens=trained,
        wall_s=now() - start,
    )
