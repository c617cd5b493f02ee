"""The transport that a config asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from headrace.weights.disk import DiskPublisher
from headrace.weights.in_process import MemoryPublisher
from headrace.weights.plane import WeightPublisher
from headrace.weights.shm import ShmPublisher

Transport = Literal["memory", "shm", "disk"]


def open_transport(
    transport: Transport, folder: Path, in_memory: Callable[[str], Path] | None = None
) -> WeightPublisher:
    """The publishing end; `disk` keeps its versions in `folder`, which need not exist yet, `shm` in a folder that
    `in_memory` makes."""
    match transport:
        case "memory":
            return MemoryPublisher()
        case "disk":
            return DiskPublisher(folder)
        case "shm":
            if in_memory is None:
                raise ValueError("shm needs a folder in memory")
            return ShmPublisher(in_memory("weights"))
