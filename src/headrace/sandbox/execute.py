"""Runs a program of the model in a sandbox of its own, from a process that can wait for it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from typing import IO, Any, Literal

from headrace.sandbox import linux
from headrace.sandbox.child_watch import Ending, Stream, now, watch
from headrace.sandbox.commands import module_command
from headrace.sandbox.descendants import kill_descendants
from headrace.sandbox.limits import Limits
from headrace.sandbox.meters import MemoryMeter, TimeMeter
from headrace.sandbox.remove import remove
from headrace.sandbox.walls import Walls

_MOST_ERRORS = 4096


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a program."""

    ending: Ending
    output: bytes
    errors: str
    reports: list[list[Any]]
    """As `program` tells them; not to be believed, but for the first: it is there if the program was begun."""
    spent_s: float
    """Its own time."""


class Executor:
    """Runs one program after another; nothing that one leaves behind is there for the next."""

    def __init__(self, walls: Walls, limits: Limits, folder: str) -> None:
        """`folder` is an empty one, in which working folders are made. The process adopts orphans."""
        self._walls = walls
        self._limits = limits
        self._folder = folder

    def run(
        self,
        code: str,
        *,
        stdin: str = "",
        call: str | None = None,
        arguments: Any = (),
        most_bytes: int,
        allowed_s: float,
        until: float,
    ) -> Ran:
        """Run `code` with `stdin`, and then perhaps `call` a function of it, for `allowed_s` of its own time, but in
        any case not beyond the time `until`.

        It may write `most_bytes` to standard output, and return as many.
        """
        spec = {
            "code": code,
            "limits": asdict(self._limits),
            "reads_all": not self._walls.stand,
            "call": call,
            "arguments": list(arguments),
        }
        work = tempfile.mkdtemp(dir=self._folder)
        self._limits.hand_over(work)
        try:
            with _file(json.dumps(spec), self._folder) as source, _file(stdin, self._folder) as given:
                return self._watched(source, given, work, most_bytes, TimeMeter(allowed_s), until)
        finally:
            kill_descendants()
            remove(work)

    def _watched(
        self, source: IO[bytes], given: IO[bytes], work: str, most_bytes: int, own_time: TimeMeter, until: float
    ) -> Ran:
        ours, report = socket.socketpair()  # of a pipe the program could take back what was told in its name
        passed = (source.fileno(), report.fileno())
        inner = module_command("program", *map(str, passed))
        with ours:
            with report:
                child = subprocess.Popen(
                    self._walls.around(inner, work, passes=passed),
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=passed,
                    cwd=work,
                    env={},
                    start_new_session=True,
                )
            assert child.stdout is not None
            assert child.stderr is not None
            with child.stdout, child.stderr:
                output = Stream(child.stdout.fileno(), most_bytes, ends_at_most=True)
                errors = Stream(child.stderr.fileno(), _MOST_ERRORS, ends_at_most=False)
                reports = _Reports(ours.fileno(), most_bytes, ends_at_most=True, own_time=own_time)
                network: Literal["host", "children"] = "children" if self._walls.stand else "host"
                memory = MemoryMeter(self._limits.memory_bytes, network) if linux.IS_LINUX else None
                ending = watch(child.pid, (output, errors, reports), until, memory=memory, own_time=own_time)
                own_time.end(now())
                child.returncode = ending.code if ending.code is not None else -9  # waited for already
        told = _lines(bytes(reports.data))
        return Ran(ending, bytes(output.data), errors.data.decode(errors="replace"), told, own_time.spent_s)


@dataclass(eq=False, kw_only=True)
class _Reports(Stream):
    """Answers what comes first: from then on the time is the program's."""

    own_time: TimeMeter

    def read(self) -> bool:
        """See `Stream`."""
        goes_on = Stream.read(self)
        if goes_on and b"\n" in self.data and not self.own_time.runs:
            self.own_time.begin(now())
            with contextlib.suppress(OSError):
                os.write(self.fd, b"\n")
        return goes_on


def _file(text: str, folder: str) -> IO[bytes]:
    """A nameless file that holds `text`; on Linux in memory, and sealed, so that no program writes into it."""
    file: IO[bytes]
    if linux.IS_LINUX:
        file = open(os.memfd_create("given", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "w+b")  # noqa: SIM115
    else:
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (the caller closes it)
    file.write(text.encode(errors="surrogatepass"))
    file.flush()
    file.seek(0)
    if linux.IS_LINUX:
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return file


def _lines(data: bytes) -> list[list[Any]]:
    """The whole lines that are JSON lists with a word first."""
    found = []
    for line in data.split(b"\n"):
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(message, list) and message and isinstance(message[0], str):
            found.append(message)
    return found
