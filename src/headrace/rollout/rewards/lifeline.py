"""A pipe that nobody writes to: the run holds one end, and when the run ends, however it ends, its scoring processes
end too, in whatever they are doing, with all that they started."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import threading  # noqa: TID251 (in the child, where there is no runtime)


def end_with(lifeline: int) -> None:
    """Kill this process's group as soon as the other end of the pipe `lifeline` is closed.

    On Linux the kernel does it, so that a function that never lets Python run, as a pattern that backtracks, cannot
    hold it up. Elsewhere a thread does it.
    """
    os.set_inheritable(lifeline, False)
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
        poll = select.poll()
        poll.register(lifeline, 0)
        if poll.poll(0):  # it was closed before the kernel was asked
            _kill_group()
    else:
        threading.Thread(target=_wait_for_the_end, args=(lifeline,), daemon=True).start()


def _wait_for_the_end(lifeline: int) -> None:
    os.read(lifeline, 1)
    _kill_group()


def _kill_group() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)
