"""The standard streams of a command: pipes, which it can open by /dev/stdin, /dev/stdout and /dev/stderr.

Those that an event loop makes may be sockets, as `uvloop`'s are, and Linux opens none by its path.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import FileIO

from headrace.runtime.protocol import Clock, WaitTimeout

_MOST_KEPT = 1 << 16
"""Bytes of what it prints, of each stream: the last ones."""
_LAST_WORDS_S = 1.0
"""In which what it printed comes, once it has ended."""


class CommandStreams:
    """Of one command; see `command_streams`."""

    def __init__(self, stdin: tuple[FileIO, FileIO], stdout: tuple[FileIO, FileIO], stderr: tuple[FileIO, FileIO]):
        """Pipes, each the end that is read, and the one that is written."""
        self.stdin, self._told = stdin
        self._printed, self.stdout = stdout
        self._errors, self.stderr = stderr
        for ours in (self._told, self._printed, self._errors):
            os.set_blocking(ours.fileno(), False)

    def hand_over(self) -> None:
        """Once the command has its ends, nobody else is to have them."""
        for theirs in (self.stdin, self.stdout, self.stderr):
            theirs.close()

    async def talk(self, process: Process, given: bytes, clock: Clock) -> tuple[bytes, bytes]:
        """The last bytes of both that it prints, to their end, or to soon after the end of the process: what it left
        behind may hold them open. `given`: what it reads."""
        kept = bytearray(), bytearray()
        talking = asyncio.gather(
            _tell(self._told, given), _keep_last(self._printed, kept[0]), _keep_last(self._errors, kept[1])
        )
        ended = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait((talking, ended), return_when=asyncio.FIRST_COMPLETED)
            with contextlib.suppress(WaitTimeout):
                await clock.wait_for(talking, _LAST_WORDS_S, "the last words of an agent's command")
        finally:
            talking.cancel()
            ended.cancel()
            await asyncio.gather(talking, ended, return_exceptions=True)
        return bytes(kept[0]), bytes(kept[1])


@contextmanager
def command_streams() -> Iterator[CommandStreams]:
    """All ends are closed behind it. Raises OSError."""
    with ExitStack() as ends:
        yield CommandStreams(_pipe(ends), _pipe(ends), _pipe(ends))


def _pipe(ends: ExitStack) -> tuple[FileIO, FileIO]:
    reads, writes = os.pipe()
    pipe = ends.enter_context(FileIO(reads, "r")), ends.enter_context(FileIO(writes, "w"))
    if sys.platform == "linux":  # root's command is another user by then; only who has an end finds its path
        os.fchmod(reads, 0o666)
    return pipe


async def _tell(pipe: FileIO, given: bytes) -> None:
    """All of it, unless nobody reads it any more; then there is no more."""
    loop, can, left = asyncio.get_running_loop(), asyncio.Event(), memoryview(given)
    loop.add_writer(pipe.fileno(), can.set)
    try:
        while left:
            await can.wait()
            can.clear()
            left = left[pipe.write(left) or 0 :]
    except BrokenPipeError:
        pass
    finally:
        loop.remove_writer(pipe.fileno())
        pipe.close()


async def _keep_last(pipe: FileIO, kept: bytearray) -> None:
    loop, can = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pipe.fileno(), can.set)
    try:
        while True:
            await can.wait()
            can.clear()
            part = pipe.read(_MOST_KEPT)
            if part == b"":
                return
            kept += part or b""  # None: there is nothing yet
            del kept[:-_MOST_KEPT]
    finally:
        loop.remove_reader(pipe.fileno())
