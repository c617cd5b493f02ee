"""Runs a command under limits where no walls stand; and what `forward` does for its own command.

Called with SPEC and the command; SPEC is JSON: `user`, whom root becomes; `memory_bytes`, which the command's processes
may have together; and `processes`, how many there may be. Exits as the command does (128 + N for signal N), with 125 if
root may not become that user, or with 124, and the reason, if it took more. Imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading  # noqa: TID251 (in a child, where there is no runtime)
import time  # noqa: TID251 (in a child, where there is no runtime)
from collections.abc import Callable
from typing import Literal, NoReturn

from headrace.sandbox import linux
from headrace.sandbox.child_watch import now
from headrace.sandbox.descendants import descendants
from headrace.sandbox.limits import NOBODY, filter_calls, limit_dumps, limit_processes
from headrace.sandbox.meters import MemoryMeter
from headrace.sandbox.proc import tasks_of

_OVER = 124
NOT_BEGUN = 125
"""Exit status of what could not be made ready for the command."""
_NO_COMMAND = 127


def main() -> None:
    spec, command = json.loads(sys.argv[1]), sys.argv[2:]
    is_alone = os.geteuid() == 0 and spec["user"] != NOBODY
    try:
        give_up_rights(spec["user"], walled=False)
    except OSError as error:
        os.write(2, f"root cannot become user {spec['user']}: {error.strerror}\n".encode())
        os._exit(NOT_BEGUN)

    def prepare() -> None:
        if is_alone:
            limit_processes(spec["processes"] + 2, alone=True)  # with this process and its thread that watches

    # Of a user who has other processes too the kernel would count those, and how many there are changes.
    end_with(begin(command, prepare), spec["memory_bytes"], "host", None if is_alone else spec["processes"])


def give_up_rights(user: int, *, walled: bool = True) -> None:
    """This process ends with its parent, is `user` if it was root (see `linux.become`), and is out of reach of what it
    starts. `walled`: without walls, which would keep it from files, it may rather write all than not read some, and
    ask the kernel for what it likes, as a container of its own. Raises OSError."""
    if linux.IS_LINUX:
        linux.gain_nothing()
        if os.geteuid() == 0:
            linux.keep_rights_when_becoming()
            linux.become(user, reads_all=True, or_writes_all=not walled)
        linux.die_with_parent()  # whoever becomes another user has to say so again
        linux.adopt_orphans()  # else nobody would see what memory they take
        linux.hide_memory()  # the command is of the same user, and may less: it must not act by this process
        if walled:
            filter_calls(is_program=False)


def begin(command: list[str], prepare: Callable[[], None]) -> int:
    """A child, which calls `prepare` and becomes the command."""
    child = os.fork()
    if child:
        return child
    try:
        if linux.IS_LINUX:
            linux.die_with_parent()
        limit_dumps()
        prepare()
        os.execvp(command[0], command)
    except OSError as error:
        who = f" (as user {os.geteuid()})" if isinstance(error, PermissionError) else ""
        os.write(2, f"{command[0]}: {error.strerror}{who}\n".encode())
    os._exit(_NO_COMMAND)


def end_with(
    child: int, most_bytes: int, network: Literal["host", "this"], most_processes: int | None = None
) -> NoReturn:
    """This process ends as `child` does, or once the limits are passed: then the child ends with it, and whoever
    started this process ends what is left. `network`: see `MemoryMeter`; `most_processes`: threads too."""
    threading.Thread(target=_watch, args=(most_bytes, network, most_processes), daemon=True).start()
    while True:
        ended, status = os.wait()  # of orphans, which are this process's, nothing is left
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _watch(most_bytes: int, network: Literal["host", "this"], most_processes: int | None) -> None:
    meter = MemoryMeter(most_bytes, network)
    pause_s = meter.first_s
    while True:
        time.sleep(pause_s)
        is_over, pause_s = meter.look(now())
        if is_over:
            _end(f"it took more than {most_bytes >> 20} MiB of memory (rollout.agent.memory_mib)")
        if most_processes is not None and _threads() > most_processes:
            _end(f"it had more than {most_processes} processes and threads (rollout.agent.processes)")


def _threads() -> int:
    count = 0
    for pid in descendants():
        with contextlib.suppress(OSError):
            count += len(tasks_of(pid))
    return count


def _end(why: str) -> NoReturn:
    os.write(2, f"\n{why}\n".encode())
    os._exit(_OVER)


if __name__ == "__main__":
    main()
