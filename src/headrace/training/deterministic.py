"""Sums in one order on a CUDA device, where kernels otherwise add up in the order in which their parts are done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic

_settings: Any = torch.utils.deterministic
_LACKS = "deterministic"
"""In what torch raises for an operation that has no such kernel."""


@contextmanager
def deterministic() -> Iterator[None]:
    """Everything in this process that computes on a device meanwhile: nobody else may.

    Raises RuntimeError for an operation that cannot, see `lacks_kernel`."""
    enabled = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    fills = _settings.fill_uninitialized_memory
    _settings.fill_uninitialized_memory = False  # for finding faults; it costs
    # Where it only warns, memory-efficient attention does not sum in one order.
    torch.use_deterministic_algorithms(True, warn_only=False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warns)
        _settings.fill_uninitialized_memory = fills


def lacks_kernel(error: RuntimeError) -> bool:
    """Whether it says that an operation has no kernel which sums in one order."""
    return _LACKS in str(error)
