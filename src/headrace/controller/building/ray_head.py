"""The Ray of a run that joins none: on this machine, on loopback alone, under a guardian that ends all of it with the
run, however that ends: what Ray itself starts survives a kill of whoever started it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time  # noqa: TID251 (on a lane, before there is anything to wait for in the loop)
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from headrace import lifelines
from headrace.controller.building.ray_folder import PREFIX, ray_parent
from headrace.errors import HeadraceError
from headrace.runtime.ports import NoPort, free_ports
from headrace.sandbox.guardian import guarded

_SYSTEM = {"automatic_object_spilling_enabled": False}
"""What of it is not Ray's own choice: that nothing goes to a disk."""
_START_S = 120.0
_LOOK_S = 0.1
_END_S = 10.0
_WORDS = 2**18
"""Bytes of the log's end that are looked at."""
_ENDED = re.compile(r"exited unexpectedly:\s*\n(?:.* -- )?(\S+) \[exit code=(-?\d+)\]")
_RAISED = re.compile(r"^[\w.]*(?:Error|Exception)\b")


class RayHeadError(HeadraceError, RuntimeError):
    """Ray could not be started."""


class RayHead:
    def __init__(self, processors: int, log: Path | None, devices: Mapping[str, int] = MappingProxyType({})) -> None:
        """`processors`, and logical `devices` by name: that Ray counts with. `log` takes what it prints. Raises
        ConfigError where there is no place for its folder."""
        self._parent = ray_parent()
        self._processors = processors
        self._devices = dict(devices)
        self._log = log
        self._said = 0
        """Bytes that were in it before."""
        self._line: socket.socket | None = None
        self._guardian: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """Its address, once it is up. Blocking. Raises RayHeadError."""
        try:
            port, other = free_ports(2)
        except NoPort as error:
            raise RayHeadError(f"Ray cannot be started: {error}") from error
        folder = tempfile.mkdtemp(prefix=PREFIX, dir=self._parent)
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
            *("--node-ip-address=127.0.0.1", f"--port={port}", f"--num-cpus={self._processors}"),
            f"--ray-client-server-port={other}",  # nobody's; of its own there can be one on a machine
            *([f"--resources={json.dumps(self._devices)}"] if self._devices else []),
            f"--system-config={json.dumps(_SYSTEM)}",
            *("--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={folder}"),
        ]
        ours, held = socket.socketpair()
        lifelines.hold(ours)
        try:
            if self._log is not None:
                self._log.parent.mkdir(parents=True, exist_ok=True)
                self._said = self._log.stat().st_size if self._log.exists() else 0
            with held, Path(self._log or os.devnull).open("ab") as output:
                self._guardian = subprocess.Popen(
                    guarded(command, line=held.fileno(), folder=folder, passes=()),
                    pass_fds=[held.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            os.rmdir(folder)
            raise RayHeadError(f"Ray cannot be started: {error}") from error
        self._line = ours
        self._wait_for(port)
        return f"127.0.0.1:{port}"

    def ended(self) -> str | None:
        """Which of its processes have, and all with them, if any has. `ray start --block` ends with each."""
        if self._guardian is None or self._guardian.poll() is None:
            return None
        return which_ended(self._text()) or self._last_words()

    def close(self) -> None:
        """End it, with all that it started. Blocking."""
        line, self._line = self._line, None
        if line is not None:
            line.close()
        guardian, self._guardian = self._guardian, None
        if guardian is not None:
            with suppress(subprocess.TimeoutExpired):
                guardian.wait(_END_S)

    def _wait_for(self, port: int) -> None:
        assert self._guardian is not None
        end = time.monotonic() + _START_S
        while time.monotonic() < end:
            if self._guardian.poll() is not None:
                self.close()
                raise RayHeadError(f"Ray ended as it was started: {self._last_words()}")
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
                return
            time.sleep(_LOOK_S)
        self.close()
        raise RayHeadError(f"Ray was not up within {_START_S:.0f} s: {self._last_words()}")

    def _last_words(self) -> str:
        if self._log is None:
            return "it has no log"
        return last_words(self._text()) or f"see {self._log}"

    def _text(self) -> str:
        """The end of what it prints."""
        with suppress(OSError):
            if self._log is not None:
                return self._log.read_bytes()[self._said :][-_WORDS:].decode(errors="replace")
        return ""


def which_ended(log: str) -> str | None:
    """The process of Ray's that has ended of itself, after the log of the others; None if none has."""
    if (found := _ENDED.search(log)) is None:
        return None
    name, code = found[1], int(found[2])
    return f"{name} (ended by signal {-code})" if code < 0 else f"{name} (exit status {code})"


def last_words(log: str) -> str:
    """What was raised last, or else the last line; empty for an empty log."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if _RAISED.match(line)), lines[-1] if lines else "")
