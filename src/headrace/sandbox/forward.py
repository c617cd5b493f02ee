"""Inside of the sandbox: offers a Unix socket on loopback, and runs a command that finds it there.

Called with SPEC and the command; SPEC is JSON: `socket`, the path of the Unix socket; `variables`, names of environment
variables that get the address (`http://127.0.0.1:PORT`), each with what comes behind it; `user`, whom root becomes;
`memory_bytes`, which the command's processes may have together; and `processes`, how many there may be. Exits as the
command does (128 + N for signal N), with 125 if nothing could be offered, or with 124, and the reason, if it took more
memory. Imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading  # noqa: TID251 (in a child, where there is no runtime)
import time  # noqa: TID251 (in a child, where there is no runtime)
from typing import Any, NoReturn

from headrace.sandbox import linux
from headrace.sandbox.child_watch import now
from headrace.sandbox.limits import filter_calls, limit_dumps, limit_processes, refuse_unix_sockets
from headrace.sandbox.meters import MemoryMeter

_OVER, _NOTHING_OFFERED = 124, 125
_NO_COMMAND = 127
_AT_ONCE = 1 << 16


def main() -> None:
    spec, command = json.loads(sys.argv[1]), sys.argv[2:]
    try:
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    except OSError as error:
        os.write(2, f"nothing to forward: {error}\n".encode())
        os._exit(_NOTHING_OFFERED)
    port = listener.getsockname()[1]
    if linux.IS_LINUX:
        linux.die_with_parent()
        linux.gain_nothing()
        if os.geteuid() == 0:
            linux.keep_rights_when_becoming()
            linux.become(spec["user"], reads_all=True)
        linux.hide_memory()  # the program is of the same user, and may less: it must not act by this process
        filter_calls(is_program=False)
    child = os.fork()
    if child == 0:
        listener.close()
        _be_the_command(spec, command, port)
    threading.Thread(target=_accept, args=(listener, spec["socket"]), daemon=True).start()
    threading.Thread(target=_watch, args=(spec["memory_bytes"],), daemon=True).start()
    code = os.waitstatus_to_exitcode(_status_of(child))
    os._exit(code if code >= 0 else 128 - code)


def _status_of(child: int) -> int:
    """Once it has ended; of orphans, which are this process's where it is the first one, nothing is left."""
    while True:
        ended, status = os.wait()
        if ended == child:
            return status


def _be_the_command(spec: dict[str, Any], command: list[str], port: int) -> NoReturn:
    try:
        if linux.IS_LINUX:
            linux.die_with_parent()
        for name, behind in spec["variables"].items():
            os.environ[name] = f"http://127.0.0.1:{port}{behind}"
        limit_dumps()
        limit_processes(spec["processes"], alone=False)  # the forwarder is the same user's
        refuse_unix_sockets()  # a file of one may be in any folder that is shown
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(_NO_COMMAND)


def _watch(most_bytes: int) -> None:
    """The command ends with this process, and whoever started that ends what is left."""
    meter = MemoryMeter(most_bytes, "this")
    pause_s = meter.first_s
    while True:
        time.sleep(pause_s)
        is_over, pause_s = meter.look(now())
        if is_over:
            os.write(2, f"\nit took more than {most_bytes >> 20} MiB of memory (rollout.agent.memory_mib)\n".encode())
            os._exit(_OVER)


def _accept(listener: socket.socket, path: str) -> None:
    while True:
        try:
            inner, _ = listener.accept()
        except OSError:
            continue
        threading.Thread(target=_forward, args=(inner, path), daemon=True).start()


def _forward(inner: socket.socket, path: str) -> None:
    """Until both sides have ended."""
    with inner, socket.socket(socket.AF_UNIX) as outer:
        try:
            outer.connect(path)
        except OSError:
            return
        back = threading.Thread(target=_pump, args=(outer, inner), daemon=True)
        back.start()
        _pump(inner, outer)
        back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_AT_ONCE):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main()
