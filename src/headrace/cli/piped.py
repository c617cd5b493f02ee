"""Output that cannot all be written: its reader goes before all is said, as `| head` does, or its disk is full."""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress

from rich.console import Console


def has_reader() -> bool:
    """Whether somebody can still read standard output; a file always has one."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return True
    return not any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def discard_output() -> None:
    """Let what is still printed go nowhere: the reader has gone, or the disk is full, and Python would complain
    of it at its end, too."""
    with suppress(OSError, ValueError):  # ValueError: an output that is no file, or is closed
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def tell(line: str) -> None:
    """Print a line of a command whose work goes on, whether or not it can be written."""
    try:
        print(line, flush=True)
    except OSError:
        discard_output()


class PipedConsole(Console):
    """A console on standard output. `lasting`: what prints on it goes on when nobody reads any more; else
    BrokenPipeError ends it."""

    def __init__(self, *, lasting: bool, force_terminal: bool | None = None) -> None:
        super().__init__(force_terminal=force_terminal)
        self._lasting = lasting

    def on_broken_pipe(self) -> None:
        """Called by rich, which would end the process."""
        if not self._lasting:
            raise BrokenPipeError
        self.quiet = True
        discard_output()
