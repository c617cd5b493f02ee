"""A worker process, seen from its parent: begun, watched and ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
from io import RawIOBase
from pathlib import Path

from headrace import lifelines
from headrace.runtime.process.boot import Boot, thread_variables
from headrace.runtime.process.origin import Origin
from headrace.runtime.process.site import own_folder, socket_path
from headrace.runtime.workers import Placement

_LAST_WORDS = 300
"""Characters of the last line that a process printed, at most."""
_LOOKED_AT = 1 << 13
"""Bytes at the end of a log, in which its last line begins as a rule."""
_GONE_S = 30.0
"""In which a process that was killed is gone, unless it hangs in the kernel."""

logger = logging.getLogger(__name__)


class ChildProcess:
    def __init__(
        self, process: asyncio.subprocess.Process, boot: Boot, life: RawIOBase, log: Path | None, said: int
    ) -> None:
        """`said`: bytes that were in the log before."""
        self._process = process
        self._boot = boot
        self._life = life
        self._log = log
        self._said = said

    @classmethod
    async def begin(
        cls, origin: Origin, name: str, rank: int, generation: int, where: Placement, folder: Path
    ) -> ChildProcess:
        """See `Begin`. Without a log this process's stderr takes what it prints. Raises OSError."""
        log, threads = origin.log, where.threads
        path = socket_path(folder, name)
        path.unlink(missing_ok=True)
        kept, ending = os.pipe()
        life = os.fdopen(ending, "wb", buffering=0)
        lifelines.hold(life)
        with (
            socket.socket(socket.AF_UNIX) as listening,
            contextlib.ExitStack() as closing,
            contextlib.ExitStack() as ours,
        ):
            closing.callback(os.close, kept)
            ours.callback(life.close)
            listening.bind(str(path))
            listening.listen(128)
            boot = Boot(
                kind=origin.path,
                packages=list(origin.packages),
                name=name,
                rank=rank,
                generation=generation,
                threads=threads,
                limits=dict(where.limits),
                folder=str(folder),
                listening=listening.fileno(),
                life=kept,
                parent=os.getpid(),
                paths=[path for path in sys.path if path],
            )
            output = None if log is None else closing.enter_context(log.open("ab"))
            said = 0 if output is None else output.tell()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-u", "-m", "headrace.runtime.process.child", boot.text()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output or 2,
                stderr=output,
                pass_fds=(listening.fileno(), kept),
                env={**os.environ, **thread_variables(threads)},
                start_new_session=True,
            )
            ours.pop_all()
        return cls(process, boot, life, log, said)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ended(self) -> str:
        """Once it has: how, and its last words."""
        code = await self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if -code == signal.SIGKILL:
            how += " (as the kernel sends it where memory runs out)"
        return f"its process ended with {how}{last_words(self._log, self._said)}"

    def kill(self) -> None:
        """With whatever it has started in its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def clear(self) -> None:
        """Wait until it has ended, and remove what it left. One that SIGKILL does not end, as in a device driver,
        is left behind."""
        try:
            await asyncio.wait_for(self._process.wait(), _GONE_S)
        except TimeoutError:
            logger.warning("%s (pid %d) does not end after SIGKILL; it is left behind", self._boot.name, self.pid)
        finally:  # also where this is cancelled
            folder = Path(self._boot.folder)
            if not self._life.closed:
                self._life.close()
                shutil.rmtree(own_folder(folder, self._boot.name, self._boot.generation), ignore_errors=True)


def last_words(log: Path | None, said: int) -> str:
    """To be added to how a process ended: the last line with anything in it that it printed, `said` being the bytes
    that were in the log before. Of a traceback that is what was raised."""
    if log is None:
        return ""
    with contextlib.suppress(OSError), log.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(said, end - _LOOKED_AT))
        lines = [" ".join(line.split()) for line in file.read().decode(errors="replace").splitlines()]
        if last := next((line for line in reversed(lines) if line), ""):
            words = last if len(last) <= _LAST_WORDS else f"{last[: _LAST_WORDS - 3]}..."
            return f"; its last words ({log}): {words}"
    return ""
