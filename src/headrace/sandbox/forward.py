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

from headrace.sandbox.limited import NOT_BEGUN, begin, end_with, give_up_rights
from headrace.sandbox.limits import limit_processes, refuse_unix_sockets

_AT_ONCE = 1 << 16


def main() -> None:
    spec, command = json.loads(sys.argv[1]), sys.argv[2:]
    try:
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    except OSError as error:
        os.write(2, f"nothing to forward: {error}\n".encode())
        os._exit(NOT_BEGUN)
    port = listener.getsockname()[1]
    give_up_rights(spec["user"])

    def prepare() -> None:
        listener.close()
        for name, behind in spec["variables"].items():
            os.environ[name] = f"http://127.0.0.1:{port}{behind}"
        limit_processes(spec["processes"], alone=False)  # the forwarder is the same user's
        refuse_unix_sockets()  # a file of one may be in any folder that is shown

    child = begin(command, prepare)
    threading.Thread(target=_accept, args=(listener, spec["socket"]), daemon=True).start()
    end_with(child, spec["memory_bytes"], "this")


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
