"""What an end of the weight plane sees of itself, and which way weights go between two ends: pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.runtime.process.site import site_parent

Way = Literal["memory", "cuda_ipc", "shm", "collective"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Seen:
    """Where an end is, as it says itself. Plain data."""

    machine: str
    """The boot id of the kernel under it."""
    memory: str
    """The file system that it shares memory with others by: containers of one machine may have one each."""
    process: int
    """Of the machine."""
    device: str = "cpu"
    """Of its weights: the uuid of a CUDA device, or `cpu`."""


def seen_here(device: str = "cpu") -> Seen:
    """By the process that asks."""
    boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
    return Seen(boot, str(site_parent().stat().st_dev), os.getpid(), device)


def way_between(source: Seen, end: Seen) -> Way:
    """The fastest that both see. Without a boot id nobody knows of another process where it is."""
    here = bool(source.machine) and (source.machine, source.memory) == (end.machine, end.memory)
    if here and source.process == end.process:
        return "memory"
    if here:
        return "cuda_ipc" if source.device == end.device != "cpu" else "shm"
    return "collective"


def relays_needed(source: Seen, ends: Mapping[str, Seen], *, each: bool = False) -> tuple[tuple[str, ...], ...]:
    """Who takes versions from a relay, and with whom: those that the source's memory does not reach, one relay for all
    that share memory; or `each` end with one of its own, wherever it is. In the order of `ends`."""
    if each:
        return tuple((name,) for name, end in ends.items() if way_between(source, end) != "memory")
    together: dict[tuple[str, str], list[str]] = {}
    for name, end in ends.items():
        if way_between(source, end) == "collective":
            place = (end.machine, end.memory) if end.machine and end.memory else (name, "")
            together.setdefault(place, []).append(name)
    return tuple(tuple(names) for names in together.values())
