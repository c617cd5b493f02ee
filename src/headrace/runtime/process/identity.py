"""What a worker process is to the operating system: its name, its life, what it may open."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import threading

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_NAME_BYTES = 15


def name_process(name: str) -> None:
    """What `ps` shows. Without setproctitle, the beginning of it, where `ps -o comm` looks."""
    title = f"headrace {name}"
    try:
        from setproctitle import setproctitle
    except ImportError:
        if sys.platform == "linux":
            _prctl(_PR_SET_NAME, ctypes.c_char_p(title.encode()[:_NAME_BYTES]))
    else:
        setproctitle(title)


def end_with_parent(parent: int, life: int) -> None:
    """From now on this process ends when its parent does, however that ends. `life`: a pipe that the parent holds,
    which what this process starts does not get."""
    os.set_inheritable(life, False)
    leave_signals()
    if sys.platform == "linux":  # also while this is stopped, or holds the interpreter's lock
        _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)

    def watch() -> None:
        while os.read(life, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="life of the parent", daemon=True).start()


def leave_signals() -> None:
    """To whoever has this process's life: job schedulers send them to all, and it decides."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _do_nothing)  # what is ignored, the children would ignore as well


def end_with_starter() -> None:
    """From now on this process ends when the one that started it does. Elsewhere than on Linux nothing happens."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))


def _do_nothing(number: int, frame: object) -> None:
    pass


def open_many_files() -> None:
    """As many as the system lets it: every mapped segment takes a descriptor."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _prctl(option: int, value: ctypes.c_char_p | ctypes.c_ulong) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(ctypes.c_int(option), value)
