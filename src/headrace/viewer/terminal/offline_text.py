"""What `headrace inspect` prints of an offline trainer for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.observe.glyphs import amount, curve, decimal, duration
from headrace.observe.offline.run_record import OfflineRun
from headrace.viewer.terminal.offline_words import facts
from headrace.viewer.terminal.panels import status_style, why_failed

_CURVE_LINES = 6
_EVENTS_SHOWN = 5


def describe_run(run: OfflineRun, summary: Mapping[str, Any], width: int) -> RenderableType:
    """`summary` as made from `run` by `build_summary`; at most `width` columns."""
    of = f" of {run.planned_steps}" if run.planned_steps else ""
    title = Text.assemble(
        (run.name, "bold"),
        f"  {run.kind}  ",
        (run.status, status_style(run.status)),
        f"  step {run.number}{of}",
        ("  config ", "dim"),
        run.config_sha256[:12],
    )
    parts: list[RenderableType] = [title, *why_failed(run.error), Text()]
    if run.steps:
        parts += [_curve(run, min(width, 100)), Text()]
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in _facts(run, summary):
        table.add_row(Text(name), Text(value))
    parts.append(table)
    if run.events:
        parts.append(Text("\nlast events", "bold"))
    for event in run.events[-_EVENTS_SHOWN:]:
        told = ", ".join(f"{key} {value}" for key, value in event.data.items())
        parts.append(Text.assemble("  ", (event.kind, "cyan"), "  ", told))
    return Group(*parts)


def _curve(run: OfflineRun, width: int) -> RenderableType:
    losses = [step.measured.loss for step in run.steps]
    labels = [decimal(max(losses), 3), *[""] * (_CURVE_LINES - 2), decimal(min(losses), 3)]
    indent = max(map(len, labels))
    drawn = curve(losses, max(width - indent - 1, 10), _CURVE_LINES, span=0)
    lines = [
        Text.assemble((label.rjust(indent), "dim"), " ", (line, "cyan"))
        for label, line in zip(labels, drawn, strict=True)
    ]
    return Group(Text("loss of each batch", "bold"), *lines)


def _facts(run: OfflineRun, summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "trained for", duration(summary["wall_s"])
    yield "loss", f"{decimal(summary['first_loss'], 4)} → {decimal(summary['last_loss'], 4)}"
    if run.steps:
        yield from ((f"  {name}", value) for name, value in facts(run.steps[-1].measured)[1:])
    if run.evaluations:
        first, last = run.evaluations[0], run.evaluations[-1]
        yield "held out", f"{last.rows} rows, lowest loss at step {summary['eval']['lowest_loss_step']}"
        before = dict(facts(first.measured))
        for name, value in facts(last.measured):
            yield f"  {name}", f"{before[name]} → {value}" if last is not first else value
    rate = summary["tokens_per_s"]
    yield (
        "tokens",
        f"{amount(summary['tokens'])} ({amount(rate)}/s), {amount(summary['trained_tokens'])} of responses",
    )
    if summary["skipped_steps"]:
        yield "skipped steps", f"{summary['skipped_steps']}: the gradient was not finite"
    yield "seed", str(summary["seed"])
