"""What a run that was started from Python shows of itself: the live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from rich.console import Console

from headrace.observe.glyphs import near_zero
from headrace.viewer.terminal.offline_view import OfflineLines, OfflineLiveView
from headrace.viewer.terminal.showing import View, view_for

if TYPE_CHECKING:
    from headrace.offline.loop import Report
    from headrace.offline.recorder import OfflineView


class _LastingConsole(Console):
    """The run goes on when nobody reads any more."""

    def on_broken_pipe(self) -> None:
        """Called by rich, which would end the process."""
        self.quiet = True


def caller_view() -> View:
    """On the caller's standard output. In a notebook, where a picture that redraws itself would be one of many, lines
    come below the cell."""
    return view_for(_console())


def offline_view(name: str) -> tuple[OfflineView, Report]:
    """The same of an offline trainer, called `name`; and what is told of its steps."""

    def report(step: int, loss: float, tokens_per_s: float) -> None:
        tell(f"{name} step {step}: loss {near_zero(loss, 4)}, {tokens_per_s:,.0f} tokens/s")

    console = _console()
    if console.is_terminal and not console.is_dumb_terminal:
        return OfflineLiveView(console), lambda step, loss, tokens_per_s: None
    return OfflineLines(tell), report


def tell(line: str) -> None:
    """Print a line of work that goes on, whether or not it can be written."""
    with suppress(OSError, ValueError):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def note(line: str) -> None:
    """What the caller should know, and what stops nothing."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"headrace: note: {line}\n")
        sys.stderr.flush()


def notes(lines: Iterable[str]) -> None:
    for line in lines:
        note(line)


def _console() -> Console:
    # Said to it, since notebooks set FORCE_COLOR, which rich takes for a terminal.
    return _LastingConsole(force_jupyter=False, force_terminal=sys.stdout.isatty())
