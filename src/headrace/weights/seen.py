"""What an end of the weight plane sees of itself, and which way weights go between two ends: pure."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.runtime.machine import boot_id, loopback_here
from headrace.runtime.process.site import site_parent

CPU = "cpu"
"""The device of weights in the host's memory."""
Way = Literal["memory", "cuda_ipc", "shm", "collective"]


@dataclass(frozen=True, slots=True)
class Seen:
    """Where an end is, as it says itself. Plain data."""

    machine: str
    """The boot id of the kernel under it."""
    memory: str
    """The file system that it shares memory with others by: containers of one machine may have one each."""
    process: int
    """Of the machine."""
    device: str
    """Of its weights: the uuid of a CUDA device (`device_name`), or `CPU`."""
    loopback: str = ""
    """See `loopback_here`."""

    def shares_memory(self, other: Seen) -> bool:
        """Without a boot id nobody knows of another process where it is."""
        return bool(self.machine) and (self.machine, self.memory) == (other.machine, other.memory)

    def shares_loopback(self, other: Seen) -> bool:
        """See `shares_memory`."""
        return bool(self.loopback) and self.loopback == other.loopback


def seen_here(device: str) -> Seen:
    """By the process that asks. `device`: of its weights."""
    return Seen(boot_id(), str(site_parent().stat().st_dev), os.getpid(), device, loopback_here())


def way_between(source: Seen, end: Seen) -> Way:
    """The fastest that both see."""
    here = source.shares_memory(end)
    if here and source.process == end.process:
        return "memory"
    if here:
        return "cuda_ipc" if source.device == end.device != CPU else "shm"
    return "collective"


def needs_relay(source: Seen, end: Seen, *, each: bool = False) -> bool:
    """Whether versions come to this end over a relay beside it: where it does not see the source's memory, or `each`
    has one that is not in the source's own process. Whoever is made anew elsewhere takes its relay along: none is
    shared."""
    way = way_between(source, end)
    return way == "collective" or (each and way != "memory")


def speak_by_nccl(devices: Sequence[str], usable: Sequence[Collection[str]]) -> bool:
    """Whether relays do. `devices`: of the weights of whoever each is beside. `usable`: those by which each can. NCCL
    takes one process on a device; where two ends share one, or one has none, all speak by gloo."""
    each_its_own = len(set(devices)) == len(devices)
    return each_its_own and all(device in own for device, own in zip(devices, usable, strict=True))
