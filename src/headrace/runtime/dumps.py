"""Reads the dumps of `faulthandler`: where each thread was, and whose code that is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_THREAD = re.compile(r"^(?:Current t|T)hread 0x([0-9a-f]+)")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_DEBUGGERS = ("bdb.py", "pdb.py", "pydevd.py", "pydevd_frame.py")
_WAITING = ("threading.py", "selectors.py", "queue.py", "socket.py", "ssl.py", "subprocess.py", "connection.py")
"""A thread whose innermost call is in one of these waits, without the interpreter's lock."""
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
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
        foreign = self.file.startswith((_OURS, _STANDARD, "<")) or any(part in self.file for part in _INSTALLED)
        return not foreign


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
    if any(os.path.basename(frame.file) in _DEBUGGERS for frame in whole):
        return None
    if stack:
        return _place(stack, owners)
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
            return () if inner and os.path.basename(inner[0].file) == "selectors.py" else inner
    return ()


def _place(stack: Stack, owners: Mapping[str, str]) -> str:
    yours = next((place for place, frame in enumerate(stack) if frame.is_yours), None)
    if yours is None:
        return f"at {stack[0]} (no code of yours)"
    owner = next((owners[frame.file] for frame in stack[yours:] if frame.file in owners), "code of yours")
    within = f", which is at {stack[0]}" if yours else ""
    return f"at {stack[yours]} ({owner}){within}"
