"""The loop that keeps a view up to date."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rich.console import Console

from headrace.viewer.terminal.live import LiveView
from headrace.viewer.terminal.plain import PlainView
from headrace.viewer.terminal.snapshot import Snapshot

REFRESH_S = 1.0
"""Drawing takes about 10 ms of the event loop."""


class View(Protocol):
    def open(self) -> None: ...

    def show(self, snapshot: Snapshot) -> None: ...

    def close(self) -> None: ...


class Noticed:
    """A view that knows whether it is open: what is recorded meanwhile is shown."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.is_open = False

    def open(self) -> None:
        self._view.open()
        self.is_open = True

    def show(self, snapshot: Snapshot) -> None:
        self._view.show(snapshot)

    def close(self) -> None:
        self.is_open = False
        self._view.close()


class Sleeper(Protocol):
    async def sleep(self, seconds: float) -> None: ...


def view_for(console: Console) -> View:
    """The live view on a terminal that can show it, plain lines elsewhere."""
    if console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only:
        return LiveView(console)
    return PlainView(lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))


async def watch(view: View, take: Callable[[], Snapshot], clock: Sleeper, *, period_s: float = REFRESH_S) -> None:
    """Show the run again and again until cancelled, then once more how it ended."""
    view.open()
    try:
        while True:
            view.show(take())
            await clock.sleep(period_s)
    finally:
        try:
            view.show(take())
        finally:
            view.close()
