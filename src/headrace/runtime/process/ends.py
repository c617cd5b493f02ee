"""The end of processes that are nobody's children here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import psutil

_LOOK_S = 0.1


async def first_to_end(processes: Sequence[psutil.Process]) -> psutil.Process:
    """The first of them to end; for ever where there is none. It is looked for: a pidfd tells of the end of a process's
    last thread alone, and of what is killed while it computes, and has much memory, that is up to seconds after its
    first one's."""
    while True:
        for process in processes:
            if _has_ended(process):
                return process
        await asyncio.sleep(_LOOK_S)


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:  # of one of somebody else's
        return False
