"""An inference server that is launched, and ends with whoever launched it, however that ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from headrace import lifelines
from headrace.config.values.hosts import is_loopback
from headrace.engines.protocol import EngineError
from headrace.runtime.process.ends import first_to_end
from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.sandbox.guardian import guarded
from headrace.sandbox.shared_memory import shared_by

_TERM_S, _KILL_S = 10.0, 10.0
_OF_SERVERS = ("/dev/shm/psm_", "/dev/shm/sglang_", "/dev/shm/vllm_", "/dev/shm/sem.")
"""How the names of shared memory begin that Python's multiprocessing gives, SGLang, and vLLM."""
_ELSEWHERE = "For further information visit https://errors.pydantic.dev"
"""Stands below what pydantic says of a value."""
_WORDS = 2000
"""Bytes of the log's end that are looked at."""


def _says_something(line: str) -> bool:
    return bool(line.strip()) and _ELSEWHERE not in line


class LaunchedServer:
    """A command under a guardian, which adopts what it leaves behind: a server's engine core survives the server's own
    process."""

    def __init__(self, clock: Clock, log: Path, title: str) -> None:
        """`log`: what the server prints is added there. `title`: how the names of its processes begin without which it
        does not serve."""
        self._clock = clock
        self._log = log
        self._title = title
        self._began = 0
        """Bytes of the log before this server."""
        self._guardian: Process | None = None
        self._line: socket.socket | None = None
        self._noted: list[psutil.Process] = []
        self._needed: list[psutil.Process] = []
        """Of these, those without which it does not serve."""
        self._segments: list[str] = []
        """Of shared memory, which its processes share among themselves."""

    async def start(self, command: Sequence[str], environment: Callable[[str], Mapping[str, str]]) -> None:
        """`command`: an absolute path first. `environment`: for a folder of its own, which ends with it. Raises
        EngineError."""
        ours, held = socket.socketpair()
        lifelines.hold(ours)
        folder = tempfile.mkdtemp(prefix="headrace-")
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with held, self._log.open("ab") as output:
                self._began = output.tell()
                self._guardian = await asyncio.create_subprocess_exec(
                    *guarded(command, line=held.fileno(), folder=folder, passes=(), shared=_OF_SERVERS),
                    pass_fds=[held.fileno()],
                    stdin=DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment(folder),
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise EngineError(f"cannot start {command[0]}: {error}") from error
        self._line = ours

    async def ended(self) -> str:
        """Once it has, or one of the noted processes without which it does not serve: how."""
        assert self._guardian is not None
        whole = asyncio.ensure_future(self._guardian.wait())
        part = asyncio.ensure_future(first_to_end(self._needed))
        try:
            await asyncio.wait((whole, part), return_when=asyncio.FIRST_COMPLETED)
            if not whole.done():
                return f"lost its process {part.result().pid}"
        finally:
            whole.cancel()
            part.cancel()
            await asyncio.gather(whole, part, return_exceptions=True)
        code = whole.result()
        self.end_noted()
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit status {code}"

    def listens(self, port: int) -> bool:
        """Whether one of its processes does, at this port."""
        return any(address.port == port for address in self._listening())

    def beyond_loopback(self) -> list[str]:
        """Where its processes listen that other machines may reach, each as HOST:PORT."""
        found = {(each.ip, each.port) for each in self._listening() if not is_loopback(each.ip)}
        return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in sorted(found)]

    def _listening(self) -> Iterator[Any]:
        """Addresses, as `psutil` has them."""
        for process in self._below():
            with contextlib.suppress(psutil.Error):
                for each in process.net_connections(kind="tcp"):
                    if each.status == psutil.CONN_LISTEN:
                        yield each.laddr

    def _below(self) -> list[psutil.Process]:
        if self._guardian is not None:
            with contextlib.suppress(psutil.Error):
                return psutil.Process(self._guardian.pid).children(recursive=True)
        return []

    def note(self) -> None:
        """Which processes it has now: should the guardian itself be killed, they are ended all the same. And which
        shared memory: one that is killed leaves it, some hundred MB of it."""
        self._noted = self._below() or self._noted
        self._needed = [each for each in self._noted if _title(each).startswith(self._title)]
        self._note_shared()

    def _note_shared(self) -> None:
        found = (path for process in self._noted for path in _shared(process))
        self._segments = sorted({*self._segments, *found})

    def end_noted(self) -> None:
        """End those that linger, and remove the memory that they share, by now."""
        self._note_shared()
        for process in self._noted:
            with contextlib.suppress(psutil.Error):  # a number that is another's by now is none of these
                process.kill()
        for path in self._segments:
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._noted, self._needed, self._segments = [], [], []

    def has_ended(self) -> bool:
        return self._guardian is not None and self._guardian.returncode is not None

    def last_words(self, chosen: Callable[[str], bool] = _says_something) -> str:
        """The last line of what it printed that is `chosen`."""
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            log.seek(max(self._began, log.seek(0, os.SEEK_END) - _WORDS))
            lines = log.read().decode(errors="replace").splitlines()
            return next((line.strip() for line in reversed(lines) if chosen(line)), "")
        return ""

    async def stop(self, *, kindly: bool = True) -> None:
        """End it, with all that it started; `kindly`: ask it to end first."""
        if self._noted:  # what it shares by now
            self.note()
        guardian, self._guardian = self._guardian, None
        if guardian is None:
            return
        if guardian.returncode is None and kindly:
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(guardian.pid).children():
                    child.send_signal(signal.SIGTERM)
            with contextlib.suppress(WaitTimeout):
                await self._clock.wait_for(guardian.wait(), _TERM_S, "the server to end")
        if self._line is not None:
            self._line.close()
            self._line = None
        with contextlib.suppress(WaitTimeout):
            await self._clock.wait_for(guardian.wait(), _KILL_S, "the server to be ended")
        self.end_noted()


def _title(process: psutil.Process) -> str:
    """As it names itself."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _shared(process: psutil.Process) -> set[str]:
    """The files of shared memory that it has mapped or open, and that are its own kind's: what others gave it, as
    weights, has other names."""
    with contextlib.suppress(psutil.Error):
        if process.is_running():  # its number may be another's by now
            return shared_by(process.pid, _OF_SERVERS)
    return set()
