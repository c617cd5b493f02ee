"""The transport that a config asks for."""

from __future__ import annotations

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
