"""What a signal to stop does, as it was before Ray was begun or ended in this process."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ROOM = 1024
"""Bytes, more than any system's `struct sigaction` has."""


@contextmanager
def kept_signal_handlers() -> Iterator[None]:
    """From any thread. Ray puts a handler of its own over a process's, which writes a stack, asks whoever was there
    before, and has the process aborted 3 s later; when Ray ends, the signals get the system's default. Python tells of
    neither, and sets handlers in the main thread alone, where Ray is not begun: so it is told to the system."""
    library = ctypes.CDLL(None, use_errno=True)
    before = {number: ctypes.create_string_buffer(_ROOM) for number in _SIGNALS}
    for number, found in before.items():
        _require(library.sigaction(number, None, found))
    try:
        yield
    finally:
        for number, found in before.items():
            _require(library.sigaction(number, found, None))


def _require(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), "sigaction")
