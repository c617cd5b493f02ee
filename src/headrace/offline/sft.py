"""`headrace sft`: supervised fine-tuning on demonstrations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.config import SFTConfig
from headrace.config.data import SourceConfig
from headrace.controller.begin import Begin
from headrace.controller.stopping import StopFlag
from headrace.models.packing import PackRow
from headrace.observe.offline.listeners import NOBODY, OfflineListeners
from headrace.offline.conversations import read_conversations
from headrace.offline.demonstrations import read_demonstrations
from headrace.offline.inputs import Inputs
from headrace.offline.loop import OfflineResult, Report, Source, look_at, run_offline
from headrace.offline.output import OutputFolder
from headrace.offline.recorder import OfflineView
from headrace.offline.trained.of_demonstrations import demonstrations_loss
from headrace.offline.units import Unit


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
    inputs = demonstrations_of(config, output)
    return run_offline(
        config,
        output,
        inputs.units,
        per_batch=inputs.per_batch,
        held_out=inputs.held_out,
        begin=begin,
        report=report,
        now=now,
        stop=stop,
        view=view,
        listeners=listeners,
    )


def demonstrations_of(config: SFTConfig, output: OutputFolder | None) -> Inputs:
    """`output`: where the model is to go, if that is known. Raises ConfigError."""
    demonstrations_loss(config)  # a function of the user's, before anything begins
    source = look_at(config, output)
    return Inputs(
        source,
        _units(config, source, config.data.sources),
        _units(config, source, config.data.held_out)[: config.evaluation.max_rows],
        config.trainer.samples_per_batch,
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
        stop_token_ids=source.stop_token_ids,
        max_context=source.max_context,
        template=source.template,
    )
