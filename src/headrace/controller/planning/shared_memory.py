"""Whether memory that processes share has room for the weights that go through it."""

from __future__ import annotations

import shutil

from headrace.config import ConfigError
from headrace.controller.planning.memory_estimate import GIB, MemoryEstimate
from headrace.runtime.process.site import site_parent, sweep
from headrace.weights.transport import Transport


def check_shared_memory(transport: Transport, memory: MemoryEstimate) -> None:
    """Raises ConfigError, with how much is needed and how to have more. What runs left that are no more is removed
    first."""
    needed = memory.published + memory.at_relays
    if transport != "shm" or not needed:
        return
    sweep()
    place = site_parent()
    free = shutil.disk_usage(place).free
    if needed > free:
        size = (needed + shutil.disk_usage(place).used) // GIB + 1
        raise ConfigError(
            f"weights.transport is {'collective' if memory.at_relays else 'shm'}, which keeps two versions of the "
            f"weights in {place}{', and two for each relay' if memory.at_relays else ''}: {needed / GIB:,.2f} GiB, and "
            f" {free / GIB:,.2f} GiB are free there; have {size} GiB (mount -o remount,size={size}G {place}, or a "
            f"container's --shm-size={size}g), or use weights.transport: disk"
        )
