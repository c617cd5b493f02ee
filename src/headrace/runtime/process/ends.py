"""The end of processes that are nobody's children here."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence

import psutil


async def first_to_end(processes: Sequence[psutil.Process]) -> psutil.Process:
    """The first of them to end, told at once. For ever where none does, or the system cannot tell of it (Linux can)."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[psutil.Process] = loop.create_future()
    held: list[int] = []

    def tell(process: psutil.Process) -> None:
        if not ended.done():
            ended.set_result(process)

    try:
        for process in processes if hasattr(os, "pidfd_open") else ():
            try:
                held.append(os.pidfd_open(process.pid))
            except ProcessLookupError:
                tell(process)
                break
            except OSError:
                continue
            if not process.is_running():  # its number is another's by now
                tell(process)
                break
            loop.add_reader(held[-1], tell, process)
        return await ended
    finally:
        for descriptor in held:
            loop.remove_reader(descriptor)
            with contextlib.suppress(OSError):
                os.close(descriptor)
