"""Reads the dumps of `faulthandler`: where each thread was, and whose code that is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_THREAD = re.compile(r"^(?:Current t|T)hread 0x([0-9a-f]+)")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
DEBUGGERS = ("bdb.py", "pdb.py", "pydevd.py", "pydevd_frame.py")
_WAITING = ("threading.py", "selectors.py", "queue.py", "socket.py", "ssl.py", "subprocess.py", "connection.py")
"""A thread whose innermost call is in one of these waits, without the interpreter's lock."""
_MOST_FRAMES, _MOST_THREADS = 100, 100
"""That `faulthandler` tells: the innermost ones, and the youngest."""
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_OURS = str(Path(__file__).absolute().parents[2]) + os.sep
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}, in {self.function}"

    @property
    def is_yours(self) -> bool:
        """Whether it is code of the user's: neither Headrace's, nor Python's, nor installed."""
        return not self.is_ours and not any(part in self.file for part in _INSTALLED)

    @property
    def is_ours(self) -> bool:
        """Whether it is Headrace's code, or Python's own."""
        of_python = self.file.startswith(_STANDARD) and not any(part in self.file for part in _INSTALLED)
        return of_python or self.file.startswith((_OURS, "<"))


Stack = Sequence[Frame]
"""The most recent call first."""


def stacks(dump: str) -> dict[int, Stack]:
    """The threads of one dump, by `threading.get_ident()`."""
    found: dict[int, list[Frame]] = {}
    stack: list[Frame] = []
    for line in dump.splitlines():
        if (thread := _THREAD.match(line)) is not None:
            stack = found[int(thread[1], 16)] = []
        elif (frame := _FRAME.match(line)) is not None:
            stack.append(Frame(frame[1], int(frame[2]), frame[3]))
    return dict(found)


def blocked_at(threads: Mapping[int, Stack], loop_thread: int, owners: Mapping[str, str]) -> str | None:
    """What keeps the event loop of `loop_thread` from going on, in words; None if nothing in `threads` does, or a
    debugger. `owners`: the config's key for each file of the user's that it names."""
    whole = threads.get(loop_thread, ())
    stack = _inside_the_loop(whole)
    if any(os.path.basename(frame.file) in DEBUGGERS for frame in whole):
        return None
    if stack:
        return _place(stack, owners)
    if loop_thread not in threads and len(threads) >= _MOST_THREADS:
        return f"at a place that is not known, since the process has more than {_MOST_THREADS} threads"
    # The loop is at rest, but gets no turn: some thread holds the interpreter's lock, in C code.
    for ident, other in threads.items():
        waits = not other or os.path.basename(other[0].file) in _WAITING
        if ident != loop_thread and not waits and any(frame.is_yours for frame in other):
            return f"{_place(other, owners)}: on another thread, holding the interpreter's lock"
    return None


def _inside_the_loop(stack: Stack) -> Stack:
    """What a callback or task of the loop is at; empty while the loop waits for events."""
    for place, frame in enumerate(stack):
        if frame.function == "_run_once" and os.path.basename(frame.file) == "base_events.py":
            inner = stack[:place]
            waits = len(inner) == 1 and os.path.basename(inner[0].file) == "selectors.py"
            return () if waits else inner
    return stack if len(stack) >= _MOST_FRAMES else ()  # so deep within that the loop itself is not told


def _place(stack: Stack, owners: Mapping[str, str]) -> str:
    yours = next((place for place, frame in enumerate(stack) if frame.is_yours or frame.file in owners), None)
    if yours is None:
        installed = next((frame for frame in stack if not frame.is_ours), None)
        return f"at {installed or stack[0]} ({'installed code' if installed else 'no code of yours'})"
    owner = next((owners[frame.file] for frame in stack[yours:] if frame.file in owners), "code of yours")
    within = f", which is at {stack[0]}" if yours else ""
    return f"at {stack[yours]} ({owner}){within}"
