"""What ended scoring processes left in their folders, and is being removed by processes apart."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from asyncio.subprocess import DEVNULL

from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.sandbox import remove

_CLOSE_S = 10.0

logger = logging.getLogger(__name__)


class Clearing:
    """The run's own process removes nothing: a folder may hold a million files."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, folder: str, line: socket.socket) -> None:
        """See to it that `folder` is gone once `line`, which a guardian holds while it removes it, is closed there."""
        task = asyncio.create_task(self._clear(folder, line), name="a reward's folder")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait for what is still being removed, but not for ever."""
        if not self._tasks:
            return
        try:
            await self._clock.wait_for(asyncio.wait(self._tasks), _CLOSE_S, "folders of rewards to be removed")
        except WaitTimeout as error:
            logger.warning("%s; they are, in the background", error)

    @staticmethod
    async def _clear(folder: str, line: socket.socket) -> None:
        with line, contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_recv(line, 1)
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # there was no guardian
        if not os.path.lexists(folder):
            return
        try:  # its guardian was killed
            remover = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", remove.__file__, folder, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
            )
            await remover.wait()
        except OSError as error:
            logger.warning("cannot remove %s: %s", folder, error)
