"""The transport that a config asks for."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

import torch

from headrace.weights.cuda_ipc import CudaIpcPublisher
from headrace.weights.disk import DiskPublisher
from headrace.weights.in_process import MemoryPublisher
from headrace.weights.plane import WeightPublisher
from headrace.weights.shm import ShmPublisher

Transport = Literal["memory", "shm", "cuda_ipc", "disk"]
IN_MEMORY: tuple[Transport, ...] = ("shm", "cuda_ipc")
"""Whose folder is in memory."""


def open_transport(transport: Transport, folder: Path, device: torch.device | None = None) -> WeightPublisher:
    """The publishing end. `disk` keeps its versions in `folder`, which need not exist yet; for those `IN_MEMORY` it is
    there, empty. `device`: where the weights are, for `cuda_ipc`."""
    match transport:
        case "memory":
            return MemoryPublisher()
        case "disk":
            return DiskPublisher(folder)
        case "shm":
            return ShmPublisher(folder)
        case "cuda_ipc":
            assert device is not None, "cuda_ipc is for a device"
            return CudaIpcPublisher(folder, device)


def of_this_life(transport: Transport, folder: Path) -> Path:
    """Where weights leave from. Where that is memory, an empty folder: what a worker left that was lost is removed, and
    whoever has it mapped keeps it."""
    if transport not in IN_MEMORY:
        return folder
    lives = [path for path in folder.iterdir() if path.name.isdigit()]
    for path in lives:
        shutil.rmtree(path, ignore_errors=True)
    own = folder / str(1 + max((int(path.name) for path in lives), default=-1))
    own.mkdir(mode=0o700)
    return own
