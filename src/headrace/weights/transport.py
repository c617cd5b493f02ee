"""The transport that a config asks for."""

from __future__ import annotations

from pathlib import Path

from headrace.config.train import WeightsConfig
from headrace.weights.disk import DiskPublisher
from headrace.weights.in_process import MemoryPublisher
from headrace.weights.plane import WeightPublisher


def open_transport(config: WeightsConfig, folder: Path) -> WeightPublisher:
    """The publishing end; `disk` keeps its versions in `folder`, which need not exist yet."""
    match config.transport:
        case "memory":
            return MemoryPublisher()
        case "disk":
            return DiskPublisher(folder)
