"""The parent of one scoring process: ends it, with all that it started, when the run says so or ends, however it ends.

Its arguments are LINE FOLDER PASSES SHARED COMMAND..., an absolute path first in the command. LINE is a socket of which
the run holds the other end: when that is shut down or closed, the command has to end. FOLDER is removed at last, PASSES
are descriptors for the command alone, and SHARED how the paths of shared memory begin which processes of the command
may leave behind, and which is removed with them; with commas between. Whatever else this process was handed is closed
before the command begins. Ends as the command did; LINE stays open until the folder is gone.

The process does nothing but wait, so that nothing that the command does can hold it up. On Linux it adopts the orphans
of the command, and the command ends with it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys
from collections.abc import Sequence

from headrace.sandbox import linux
from headrace.sandbox.commands import module_command
from headrace.sandbox.descendants import descendants, kill_descendants
from headrace.sandbox.remove import remove
from headrace.sandbox.shared_memory import shared_by

TYPE_CHECKING = False  # as type checkers know it: `typing` is a fifth of the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Sent by whoever ends the whole run, which then ends this process in its own way."""


def guarded(
    command: Sequence[str], *, line: int, folder: str, passes: Sequence[int], shared: Sequence[str] = ()
) -> list[str]:
    """The command line of a guardian of `command`. It is to be handed the descriptors `line` and `passes`. `shared`: of
    a command that is trusted, since it is this process that removes what the command's processes have open there."""
    arguments = (str(line), folder, ",".join(map(str, passes)), ",".join(shared), *command)
    return module_command("guardian", *arguments, libraries=not linux.IS_LINUX)  # elsewhere `psutil` is one of them


def main() -> None:
    line, folder, passes, shared, command = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:]
    passed = [int(descriptor) for descriptor in filter(None, passes.split(","))]
    _close_all_but(line, *passed)
    os.set_inheritable(line, False)
    if linux.IS_LINUX:
        linux.adopt_orphans()
        linux.hide_memory()
    ends = _tell_of_ends()
    child = _start(command)
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)
    for descriptor in passed:
        os.close(descriptor)
    left: set[str] = set()
    status = _wait(child, ends, line, lambda: left.update(_shared(shared)))
    left |= _shared(shared)
    kill_descendants()
    for path in left:
        with contextlib.suppress(OSError):
            os.unlink(path)
    _clear(folder)
    _end_as(os.waitstatus_to_exitcode(status))


def _close_all_but(*kept: int) -> None:
    """And the standard ones: event loops of uvloop hand on all that a process lets be inherited."""
    for descriptor in map(int, os.listdir("/proc/self/fd" if linux.IS_LINUX else "/dev/fd")):
        if descriptor > 2 and descriptor not in kept:
            with contextlib.suppress(OSError):  # that of the folder itself is closed already
                os.close(descriptor)


def _tell_of_ends() -> int:
    """A descriptor that becomes readable whenever a child has ended."""
    readable, woken = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    return readable


def _start(command: list[str]) -> int:
    own = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        if linux.IS_LINUX:
            linux.die_with_parent()
        if os.getppid() == own:
            os.execv(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error}\n".encode())
    os._exit(127)


def _wait(child: int, ends: int, line: int, before_kill: Callable[[], None]) -> int:
    """Until `child` ends, which it must when the other end of `line` is closed. Its status, as of `os.wait`.
    `before_kill`: called where this process ends it, once it has been stopped."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    poll.register(ends, select.POLLIN)
    while True:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == child:
            return status
        if ended:  # an orphan
            continue
        if any(fd == line for fd, _ in poll.poll()):
            os.kill(child, signal.SIGSTOP)  # it starts no more; not waited for, so the number is its own
            before_kill()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)
            os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1]
        with contextlib.suppress(BlockingIOError):
            os.read(ends, 4096)


def _shared(prefixes: str) -> set[str]:
    """What the command's processes share now, of paths that begin so."""
    begin = tuple(filter(None, prefixes.split(",")))
    return {path for pid in descendants() for path in shared_by(pid, begin)} if begin else set()


def _clear(folder: str) -> None:
    """An empty folder at once, another one from a process that goes on: the run need not wait for it."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)
    with contextlib.suppress(OSError):  # without room for a process, the run sees to it
        if os.path.lexists(folder) and os.fork() == 0:
            os.setsid()
            remove(folder)
            os._exit(0)


def _end_as(code: int) -> NoReturn:
    """With the exit status `code`, or by the signal -`code`."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
