"""The live terminal view."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.viewer.terminal import panels
from headrace.viewer.terminal.plain import describe
from headrace.viewer.terminal.rollout_pane import LINES_EACH, MOST, latest
from headrace.viewer.terminal.snapshot import Snapshot

_SMALLEST = (64, 20)
"""Columns and lines below which there is no room for panels."""
_ROOMY = 23
"""Lines from which on a trouble may have two of them."""
_WIDE_OPEN = 30
"""Lines from which on there is room for a second alarm."""
_LEAST_PANELS = 9 + 11
"""Lines of the panels in the middle; what is left of them, there are rollouts in."""
_FRAME_LINES = 4 + 4
"""Lines of the header and of the groups where there is no trouble."""


def render(snapshot: Snapshot, width: int, height: int) -> RenderableType:
    """The whole view, at most `height` lines."""
    if width < _SMALLEST[0] or height < _SMALLEST[1]:
        return Text(describe(snapshot), overflow="ellipsis")
    troubles = panels.troubles(
        snapshot, width, most=1 if height < _ROOMY else 2, most_alarms=1 if height < _WIDE_OPEN else 2
    )
    frame = _FRAME_LINES + len(troubles)
    shown = min((height - frame - _LEAST_PANELS - 2) // LINES_EACH, MOST)
    pane = 2 + shown * LINES_EACH if shown > 0 else 0
    lower = min((height - frame - pane + 1) // 2, 9)
    upper = min(height - frame - lower - pane, 14)
    left = width * 2 // 5
    right = width - left
    body = Table.grid()
    body.add_column(width=left)
    body.add_column(width=right)
    body.add_row(panels.reward(snapshot, left, upper), panels.speed(snapshot, upper))
    body.add_row(panels.staleness(snapshot, left, lower), panels.times(snapshot, right, lower))
    parts: list[RenderableType] = [panels.header(snapshot, width), body]
    if pane:
        nothing = "none yet" if snapshot.keeps_rollouts else "none is kept: record.rollouts is 0"
        parts.append(latest(snapshot.rollouts, width, pane, nothing))
    return Group(*parts, panels.groups(snapshot, width, troubles))


class InPlace:
    """A part of the terminal that is drawn over again and again. It owns no thread: `draw` draws."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def open(self) -> None:
        self._live.start()

    def draw(self, rendered: Callable[[int, int], RenderableType]) -> None:
        """`rendered`: for a width and a height."""
        size = self._console.size
        # The line below stays free, or the terminal would scroll at every redraw.
        self._live.update(rendered(size.width, size.height - 1), refresh=True)
        if not self._console.quiet:
            # What the terminal echoes of Ctrl-C would wrap into the next line, and the view be a line off from then on.
            self._console.file.write("\r")
            self._console.file.flush()

    def close(self) -> None:
        """Leaves what was drawn last standing."""
        self._live.stop()


class LiveView(InPlace):
    """Redraws in place."""

    def show(self, snapshot: Snapshot) -> None:
        self.draw(lambda width, height: render(snapshot, width, height))
