"""Sums in one order on a CUDA device, where kernels otherwise add up in the order in which their parts are done."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.utils.deterministic
from torch import Tensor

from headrace.models.packing import MicroBatch, PackRow, pack

logger = logging.getLogger(__name__)

_settings: Any = torch.utils.deterministic
_LACKS = "deterministic"
"""In what torch raises for an operation that has no such kernel."""
_PROBE_LENGTHS = (5, 3)


@contextmanager
def deterministic() -> Iterator[None]:
    """Everything in this process that computes on a device meanwhile: nobody else may.

    Raises RuntimeError for an operation that cannot."""
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


def can_sum_in_order(outputs: Callable[[MicroBatch], Tensor], device: torch.device) -> bool:
    """Whether a pass there and back can, tried on a few tokens, which leaves gradients; says so where it cannot."""
    rows = [PackRow(np.arange(length) + 1, np.arange(length) > 0) for length in _PROBE_LENGTHS]
    try:
        with deterministic():
            outputs(pack(rows).to(device)).sum().backward()
    except RuntimeError as error:
        if _LACKS not in str(error):
            raise
        logger.warning("weights are not equal bit for bit after a resume: %s", str(error).partition(", but you set")[0])
        return False
    return True
