"""The loop of the offline trainers: batches of a fixed dataset, in a seeded order, one optimiser step each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from headrace.config import ConfigError, DPOConfig, RMConfig, SFTConfig
from headrace.controller.output import OutputFolder
from headrace.controller.threads import available_threads
from headrace.experience.dataset import PromptOrder
from headrace.models.folder import check_weights
from headrace.models.loading import load_tokenizer, read_generation_stops, read_model_config, resolve_device
from headrace.models.packing import PackRow, pack, plan_microbatches
from headrace.training.protocol import Trainer

_REPORTS = 20

Unit = Sequence[PackRow]
"""Rows that are trained in one micro-batch: a demonstration, or the two of a pair."""
Report = Callable[[int, float, float], None]
"""Steps done, loss of the last one, tokens/s since the report before."""


@dataclass(frozen=True, slots=True)
class OfflineResult:
    model: Path
    """Folder that `transformers` loads."""
    steps: int
    skipped_steps: int
    """Steps whose gradient was not finite: the weights stayed."""
    first_loss: float
    last_loss: float
    tokens: int
    """Forwarded: prompts and responses."""
    trained_tokens: int
    wall_s: float
    """Of training alone."""


@dataclass(frozen=True, slots=True)
class Source:
    """The model that training begins from, looked at before it is loaded."""

    tokenizer: Any
    end_token_id: int
    max_context: int | None
    device: torch.device


def look_at(config: SFTConfig | RMConfig | DPOConfig, output: OutputFolder) -> Source:
    """Raises ConfigError for a model that cannot be trained on responses, or that the output would overwrite."""
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
    return Source(tokenizer, end, context, device)


def run_offline(
    config: SFTConfig | RMConfig | DPOConfig,
    output: OutputFolder,
    units: Sequence[Unit],
    *,
    per_batch: int,
    make_trainer: Callable[[int], Trainer],
    prepare: Callable[[Trainer, Sequence[Unit]], Sequence[Unit]] = lambda trainer, units: units,
    export: Callable[[Trainer, Path], None] = lambda trainer, path: trainer.export(path),
    report: Report,
    now: Callable[[], float],
) -> OfflineResult:
    """Train on `units`, `per_batch` of them a step; write `model` and `summary.json` into `output`, over what is there.

    `make_trainer` is given the number of steps. `prepare` may add columns once the model is loaded. `report` is called
    some twenty times. `now`: monotonic seconds. Raises ConfigError for a folder that cannot be written, before the
    model is loaded; DiskFull or another StoreError if the model cannot be saved.
    """
    steps = config.trainer.steps or math.ceil(len(units) / per_batch)
    output.claim()
    torch.set_num_threads(available_threads(config.runtime.threads))
    trainer = make_trainer(steps)
    units = prepare(trainer, units)
    order = PromptOrder(len(units), config.seed, config.data.shuffle)
    batches = _batches(units, order, size=per_batch, steps=steps)
    result = _train(trainer, batches, output.model, steps, config.trainer.max_tokens_per_microbatch, report, now)
    output.replace_model(lambda path: export(trainer, path))
    output.write_summary({"status": "finished", **asdict(result), "model": str(output.model), "seed": config.seed})
    return result


def micro_batches(units: Sequence[Unit], max_tokens: int) -> Iterator[list[int]]:
    """Places of the units of each micro-batch; units stay whole."""
    yield from plan_microbatches([sum(map(len, unit)) for unit in units], max_tokens)


def _batches(units: Sequence[Unit], order: PromptOrder, *, size: int, steps: int) -> Iterator[list[Unit]]:
    """`steps` batches of `size` units, pass after pass over the data; a single pass may end with a short batch."""
    total = steps * size
    if total - len(units) in range(1, size):
        total = len(units)
    for start in range(0, total, size):
        places = (divmod(place, len(units)) for place in range(start, min(start + size, total)))
        yield [units[order.row(epoch, position)] for epoch, position in places]


def _train(
    trainer: Trainer,
    batches: Iterator[list[Unit]],
    target: Path,
    steps: int,
    max_tokens: int,
    report: Report,
    now: Callable[[], float],
) -> OfflineResult:
    losses: list[float] = []
    skipped = tokens = trained = tokens_reported = 0
    start = reported = now()
    every = max(1, steps // _REPORTS)
    for step, batch in enumerate(batches, start=1):
        for places in micro_batches(batch, max_tokens):
            trainer.accumulate(pack([row for place in places for row in batch[place]]))
        done = trainer.step()
        losses.append(done.loss)
        skipped += done.skipped
        tokens += done.forwarded_tokens
        trained += done.trained_tokens
        if step % every == 0 or step == steps:
            time = now()
            report(step, done.loss, (tokens - tokens_reported) / max(time - reported, 1e-9))
            reported, tokens_reported = time, tokens
    return OfflineResult(
        model=target,
        steps=len(losses),
        skipped_steps=skipped,
        first_loss=losses[0],
        last_loss=losses[-1],
        tokens=tokens,
        trained_tokens=trained,
        wall_s=now() - start,
    )
