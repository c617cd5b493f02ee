"""The transport that a config asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from headrace.weights.disk import DiskPublisher
from headrace.weights.in_process import MemoryPublisher
from headrace.weights.plane import WeightPublisher
from headrace.weights.shm import ShmPublisher

Transport = Literal["memory", "shm", "disk"]


def open_transport(transport: Transport, folder: Path) -> WeightPublisher:
    """The publishing end; `disk` keeps its versions in `folder`, which need not exist yet, `shm` in `folder`, which is
    empty and in memory."""
    match transport:
        case "memory":
            return MemoryPublisher()
        case "disk":
            return DiskPublisher(folder)
        case "shm":
            return ShmPublisher(folder)
