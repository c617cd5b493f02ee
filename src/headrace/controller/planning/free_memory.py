"""How much memory is free where something is to be, and how sizes are told."""

from __future__ import annotations

import psutil
import torch

GIB, MIB = 2**30, 2**20
SPARE = 0.05
"""Of a device's free memory: for what its libraries take, and for what falls between allocated blocks."""


def free_bytes(device: torch.device) -> int:
    """Free memory now: of the device, or of the host for the CPU."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def pinned(size: int) -> int:
    """What torch takes of the host's memory for so many pinned bytes: a power of two."""
    return 1 << (size - 1).bit_length() if size > 0 else 0


def in_units(size: int) -> str:
    """As `1.50 GiB`, or `12.00 MiB`."""
    return in_gib(size) if size >= GIB else f"{size / MIB:,.2f} MiB"


def in_gib(size: int) -> str:
    return f"{size / GIB:,.2f} GiB"
