"""`headrace rm` and `headrace dpo`: training on pairs of a chosen and a rejected response."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.config import DPOConfig, RMConfig
from headrace.config.data import SourceConfig
from headrace.config.values.name_or_function import is_own
from headrace.controller.begin import Begin
from headrace.controller.stopping import StopFlag
from headrace.observe.offline.listeners import NOBODY, OfflineListeners
from headrace.offline.demonstrations import read_pairs
from headrace.offline.inputs import Inputs
from headrace.offline.loop import OfflineResult, Report, Source, look_at, run_offline
from headrace.offline.output import OutputFolder
from headrace.offline.recorder import OfflineView
from headrace.offline.trained.of_pairs import preference_loss, ranking_loss
from headrace.offline.units import Unit


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
    inputs = pairs_of(config, output)
    return run_offline(
        config,
        output,
        inputs.units,
        per_batch=inputs.per_batch,
        held_out=inputs.held_out,
        to_start=True,
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
    inputs = pairs_of(config, output)
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


def pairs_of(config: RMConfig | DPOConfig, output: OutputFolder | None) -> Inputs:
    """`output`: where the model is to go, if that is known. Raises ConfigError."""
    if isinstance(config, DPOConfig):  # a function of the user's, before anything begins
        preference_loss(config)
    else:
        ranking_loss(config)
    source = look_at(config, output)
    return Inputs(
        source,
        _units(config, source, config.data.sources),
        _held_out(config, source),
        config.trainer.pairs_per_batch,
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
        stop_token_ids=source.stop_token_ids,
        max_context=source.max_context,
        template=source.template,
        compares=not is_own(config.loss),
    )
    return [list(pair) for pair in pairs]
