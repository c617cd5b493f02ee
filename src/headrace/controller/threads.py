"""How many CPU threads each compute lane gets."""

from __future__ import annotations

import os
from collections.abc import Callable

from headrace.config import TrainConfig


def available_threads(configured: int | None) -> int:
    """The threads that a run may use: as configured, else the processors that this process may run on."""
    if configured is not None:
        return configured
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def lane_threads(config: TrainConfig) -> dict[str, int]:
    """Threads by lane. Where generation and training take turns each gets all of them, else half."""
    threads = available_threads(config.runtime.threads)
    if config.async_.mode == "sync":
        return {"engine": threads, "trainer": threads, "weights": 1}
    half = max(threads // 2, 1)
    return {"engine": threads - half or 1, "trainer": half, "weights": 1}


def prepare_lanes(threads: dict[str, int]) -> dict[str, Callable[[], None]]:
    """What each lane's thread runs first. Torch keeps its number of threads for each thread that calls it."""

    def setter(count: int) -> Callable[[], None]:
        def prepare() -> None:
            import torch

            torch.set_num_threads(count)

        return prepare

    return {lane: setter(count) for lane, count in threads.items()}
