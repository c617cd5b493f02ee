"""`headrace ...` in a process of its own, without what a process spends on its imports: most of what a tiny run takes.

One process per process of tests has imported all that a run does, and computed nothing. What it is asked for goes on in
a fork of it, as `python -m headrace.cli.main` would: with arguments, folder, environment and output of its own, and
with the interpreter's own end.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_HERE = Path(__file__)
_PRELOADED = (
    "headrace.controller.train",
    "headrace.engines.embedded.engine",
    "transformers.models.qwen3.modeling_qwen3",
)
_MOST = 1 << 17
"""Bytes of a request."""


class Forked:
    """What tests use of `subprocess.Popen`. Its output is that of both streams, as text."""

    def __init__(self, pid: int, status: int, output: int) -> None:
        """`status`: of a pipe that tells its exit code."""
        self.pid = pid
        self.returncode: int | None = None
        self.stdout = os.fdopen(output, "r", errors="replace")
        self._status = status
        self._said: list[str] = []
        self._reading: threading.Thread | None = None

    def poll(self) -> int | None:
        """Its exit code, -N by signal N; None while it runs."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Raises TimeoutExpired."""
        if (code := self._ended(timeout)) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """What it says until nobody has its output open. Raises TimeoutExpired."""
        if self._reading is None:
            self._reading = threading.Thread(target=lambda: self._said.append(self.stdout.read()), daemon=True)
            self._reading.start()
        self._reading.join(timeout)
        if self._reading.is_alive():
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        self.wait(timeout)
        self.stdout.close()
        return "".join(self._said), None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            told = os.read(self._status, 64)
            assert told, "the process that forks has ended"
            os.close(self._status)
            self.returncode = int(told)
        return self.returncode


def headrace(arguments: Sequence[str], cwd: Path | None = None) -> Forked:
    """`headrace ARGUMENTS`, in this process' environment."""
    read, write = os.pipe()
    status, tells = os.pipe()
    told = {"arguments": [*arguments], "cwd": str(cwd or Path.cwd()), "environment": {**os.environ}}
    forking = _forking()
    try:
        socket.send_fds(forking, [json.dumps(told).encode()], [write, tells])
    finally:
        os.close(write)
        os.close(tells)
    return Forked(int(forking.recv(64)), status, read)


@cache
def _forking() -> socket.socket:
    """Speaks to the process that forks, which ends with this one."""
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with other:
        subprocess.Popen([sys.executable, str(_HERE), str(other.fileno())], pass_fds=[other.fileno()])
    return own


def _asked(fd: int) -> list[str]:
    """Fork for each request; returns in the forks, with their arguments. Ends when nobody asks any more."""
    asking = socket.socket(fileno=fd)
    running: dict[int, tuple[int, int]] = {}
    while True:
        for each in select.select([asking, *running], [], [])[0]:
            if each is not asking:
                pid, tells = running.pop(each)
                os.close(each)
                _, status = os.waitpid(pid, 0)
                os.write(tells, str(os.waitstatus_to_exitcode(status)).encode())
                os.close(tells)
                continue
            said, fds, _, _ = socket.recv_fds(asking, _MOST, 2)
            if not said:
                sys.exit()
            told, (output, tells) = json.loads(said), fds
            if (pid := os.fork()) == 0:
                for left in (*running, *(pipe for _, pipe in running.values()), tells):
                    os.close(left)
                asking.close()
                for stream in (1, 2):
                    os.dup2(output, stream)
                os.close(output)
                os.chdir(told["cwd"])
                os.environ.clear()
                os.environ.update(told["environment"])
                return list(told["arguments"])
            os.close(output)
            running[os.pidfd_open(pid)] = pid, tells
            asking.send(str(pid).encode())


if __name__ == "__main__":
    import importlib
    import runpy

    del sys.path[0]  # that of the helpers
    for name in _PRELOADED:
        importlib.import_module(name)
    sys.argv[1:] = _asked(int(sys.argv[1]))
    runpy.run_module("headrace.cli.main", run_name="__main__", alter_sys=True)
