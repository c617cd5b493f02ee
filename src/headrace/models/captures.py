"""CUDA graphs are captured one at a time in a process, and nobody gives memory back to the device meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_CAPTURING = threading.Lock()
"""torch has one capture at a time in a process, and begins each by a wait for the whole device. While any stream
captures, CUDA refuses such a wait to every thread, whatever `capture_error_mode` is, and the capture has failed. What
gives the allocator's cache back waits for the events of all streams: torch's allocator asserts that nothing is
captured, or gives nothing back. Other calls of other threads, `cudaMalloc` among them, are allowed by `thread_local`.
"""


@contextmanager
def captured(graph: torch.cuda.CUDAGraph, *, pool: Any, stream: torch.cuda.Stream) -> Iterator[None]:
    """What is handed out within becomes `graph`, once no other thread captures. Its memory is of that pool."""
    with _CAPTURING, torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        yield


def give_back(device: torch.device) -> None:
    """What torch keeps free of a device's memory, to whoever else computes there, once no thread captures."""
    if device.type == "cuda":
        with _CAPTURING:
            torch.cuda.empty_cache()
