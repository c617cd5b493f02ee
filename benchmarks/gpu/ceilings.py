"""What the device itself gives: bytes a second between two of its buffers, and bf16 operations a second."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

_BYTES, _WIDTH = 2**31, 8192
_WARM_UPS, _RUNS = 3, 10


def timed(call: Callable[[], object], runs: int = _RUNS) -> float:
    """Median seconds of a call, by the device's clock."""
    seconds = []
    for run in range(_WARM_UPS + runs):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        if run >= _WARM_UPS:
            seconds.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(seconds)


def bandwidth() -> float:
    """Bytes a second of a copy within the device, those read and those written."""
    source = torch.randint(0, 100, (_BYTES,), dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return 2 * _BYTES / timed(lambda: target.copy_(source))


def matrix_rate() -> float:
    """Operations a second of a bf16 product of two 8192 x 8192 matrices of random numbers."""
    left, right = (torch.randn(_WIDTH, _WIDTH, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    return 2 * _WIDTH**3 / timed(lambda: left @ right)
