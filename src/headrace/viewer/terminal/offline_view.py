"""The views of an offline trainer while it runs: in place on a terminal, or lines."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.observe.glyphs import amount, curve, decimal, duration, percent
from headrace.observe.offline.run_record import OfflineRun
from headrace.viewer.terminal.live import InPlace
from headrace.viewer.terminal.offline_words import facts, held_out_line
from headrace.viewer.terminal.panels import panel, status_style

_SMALLEST = (50, 12)
_HEADER_LINES = 4
_CURVE_LINES = 14
_RECENT = 50
"""Steps over which rates are taken."""


def render(run: OfflineRun, width: int, height: int) -> RenderableType:
    """The whole view, at most `height` lines."""
    if width < _SMALLEST[0] or height < _SMALLEST[1]:
        return Text(_line(run), overflow="ellipsis", no_wrap=True)
    lines = min(height - _HEADER_LINES, _CURVE_LINES)
    left = width * 3 // 5
    body = Table.grid()
    body.add_column(width=left)
    body.add_column(width=width - left)
    body.add_row(_losses(run, left, lines), _numbers(run, lines))
    return Group(_header(run, width), body)


class OfflineLiveView(InPlace):
    """Redraws in place when it is shown something."""

    def show(self, run: OfflineRun) -> None:
        self.draw(lambda width, height: render(run, width, height))


class OfflineLines:
    """A line for each evaluation on held-out rows; what is told of training is somebody else's."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._told = 0

    def open(self) -> None:
        pass

    def show(self, run: OfflineRun) -> None:
        for found in run.evaluations[self._told :]:
            self._write(held_out_line(run.kind, found))
        self._told = len(run.evaluations)

    def close(self) -> None:
        pass


def _header(run: OfflineRun, width: int) -> RenderableType:
    done, planned = run.number, run.planned_steps
    line = Text.assemble(("step ", "dim"), (f"{done}/{planned}" if planned else str(done), "bold"))
    if planned:
        tail = Text.assemble("  ", (percent(done / planned), "bold"), ("  ETA ", "dim"), (duration(_eta(run)), "bold"))
        cells = max(width - 4 - line.cell_len - tail.cell_len - 2, 4)
        filled = round(min(done / planned, 1.0) * cells)
        line.append("  ").append("━" * filled, "cyan").append("━" * (cells - filled), "grey37").append_text(tail)
    told = Text.assemble(("trained for ", "dim"), duration(run.wall_s), ("   tokens/s ", "dim"), amount(_rate(run)))
    title = Text.assemble(("headrace", "bold"), f" {run.kind} · ", run.name)
    return panel(line, told, title=title, corner=Text(run.status, status_style(run.status)))


def _losses(run: OfflineRun, width: int, height: int) -> RenderableType:
    losses = [step.measured.loss for step in run.steps]
    drawn = curve(losses, width - 4, height - 2, run.planned_steps or 0)
    return panel(
        *(Text(line, "cyan") for line in drawn),
        title=Text.assemble("loss ", (decimal(losses[-1] if losses else None, 4), "bold cyan")),
        corner=Text(f"{decimal(min(losses), 3)} … {decimal(max(losses), 3)}", "dim") if losses else None,
    )


def _numbers(run: OfflineRun, height: int) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(style="bold", no_wrap=True, overflow="ellipsis")
    last = run.steps[-1] if run.steps else None
    rows = [] if last is None else [*facts(last.measured)[1:], ("grad norm", decimal(last.grad_norm, 2))]
    rows += [] if last is None else [("lr", f"{last.lr:.2g}")]
    if run.evaluations:
        rows.append(("held out", f"step {run.evaluations[-1].step}"))
        rows += [(f"  {name}", value) for name, value in facts(run.evaluations[-1].measured)]
    for name, value in rows[: height - 2]:
        table.add_row(name, value)
    return panel(table, title=Text("last batch"), height=height)


def _line(run: OfflineRun) -> str:
    last = run.steps[-1].measured.loss if run.steps else None
    of = f"/{run.planned_steps}" if run.planned_steps else ""
    return f"{run.kind} step {run.number}{of}  loss {decimal(last, 4)}  {amount(_rate(run))} tokens/s"


def _eta(run: OfflineRun) -> float | None:
    recent = run.steps[-_RECENT:]
    if run.planned_steps is None or len(recent) < 2 or run.status != "running":
        return None
    each = (recent[-1].elapsed_s - recent[0].elapsed_s) / (len(recent) - 1)
    return max(run.planned_steps - run.number, 0) * each


def _rate(run: OfflineRun) -> float | None:
    recent = run.steps[-_RECENT:]
    seconds = recent[-1].elapsed_s - recent[0].elapsed_s if recent else 0.0
    return sum(step.forwarded_tokens for step in recent[1:]) / seconds if seconds > 0 else None
