"""Runs a program of the model in a sandbox of its own, from a process that can wait for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from headrace.rollout.sandbox.limits import Limits
from headrace.rollout.sandbox.remove import remove
from headrace.rollout.sandbox.walls import Walls
from headrace.rollout.sandbox.watch import Ending, Stream, kill_descendants, watch

_START = "import sys; sys.path.insert(0, {0!r}); from headrace.rollout.sandbox import program; del sys.path[0]"
_PACKAGES = str(Path(__file__).parents[3])
_MOST_ERRORS = 4096


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a program."""

    ending: Ending
    output: bytes
    errors: str
    reports: list[list[Any]]
    """As `program` tells them; not to be believed."""


class Executor:
    """Runs one program after another; nothing that one leaves behind is there for the next."""

    def __init__(self, walls: Walls, limits: Limits, folder: str) -> None:
        """`folder` is an empty one, in which working folders are made. The process adopts orphans."""
        self._walls = walls
        self._limits = limits
        self._folder = folder

    def run(
        self, code: str, *, stdin: str = "", call: str | None = None, arguments: Any = (), most_bytes: int, until: float
    ) -> Ran:
        """Run `code` with `stdin` until the time `until`, and then perhaps `call` a function of it.

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
                return self._watched(source, given, work, most_bytes, until)
        finally:
            kill_descendants()
            remove(work)

    def _watched(self, source: IO[bytes], given: IO[bytes], work: str, most_bytes: int, until: float) -> Ran:
        reading, report = os.pipe()
        start = f"{_START.format(_PACKAGES)}; program.main()"
        passed = (source.fileno(), report)
        inner = [sys.executable, "-I", "-c", start, *map(str, passed)]
        with os.fdopen(reading, "rb"):
            try:
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
            finally:
                os.close(report)
            assert child.stdout is not None
            assert child.stderr is not None
            with child.stdout, child.stderr:
                output = Stream(child.stdout.fileno(), most_bytes, ends_at_most=True)
                errors = Stream(child.stderr.fileno(), _MOST_ERRORS, ends_at_most=False)
                reports = Stream(reading, most_bytes, ends_at_most=True)
                ending = watch(child.pid, (output, errors, reports), until)
                child.returncode = ending.code if ending.code is not None else -9  # waited for already
        return Ran(ending, bytes(output.data), errors.data.decode(errors="replace"), _lines(bytes(reports.data)))


def _file(text: str, folder: str) -> IO[bytes]:
    """A nameless file that holds `text`."""
    file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (the caller closes it)
    file.write(text.encode(errors="surrogatepass"))
    file.flush()
    file.seek(0)
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
