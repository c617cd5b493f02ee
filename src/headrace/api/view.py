"""What a run that was started from Python shows of itself: the live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys

from rich.console import Console

from headrace.observe.watch import View, view_for


class _LastingConsole(Console):
    """The run goes on when nobody reads any more."""

    def on_broken_pipe(self) -> None:
        """Called by rich, which would end the process."""
        self.quiet = True


def caller_view() -> View:
    """On the caller's standard output. In a notebook, where a picture that redraws itself would be one of many, lines
    come below the cell."""
    # Said to it, since notebooks set FORCE_COLOR, which rich takes for a terminal.
    return view_for(_LastingConsole(force_jupyter=False, force_terminal=sys.stdout.isatty()))
