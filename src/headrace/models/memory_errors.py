"""Errors that say that memory ran out, whoever says it."""

from __future__ import annotations

import errno
import re

from headrace.runtime.workers import WorkerError

_OF_THE_CPU = "DefaultCPUAllocator: can't allocate memory"
_OF_A_DEVICE = re.compile(
    r"CUDA out of memory"  # torch's allocator
    r"|CUDA (?:driver )?error: out of memory"  # graphs, modules, streams, pinned memory
    r"|Triton Error \[CUDA\]: out of memory"
    r"|\bCU[A-Z]+_STATUS_ALLOC_FAILED\b"  # cuBLAS, cuDNN, cuSOLVER
    r"|\bCUDNN_STATUS_INTERNAL_ERROR_(?:DEVICE|HOST)_ALLOCATION_FAILED\b"  # cuDNN 9
    r"|Cuda failure (?:\d+ )?'out of memory'"  # NCCL
)
"""By their texts: `torch.AcceleratorError` is of newer versions of torch, and of other errors too."""
_OF_A_DEVICE_TYPE, _OF_THE_HOST_TYPES = "OutOfMemoryError", ("MemoryError", "_ArrayMemoryError")
"""Of what a worker raised: torch's; Python's and numpy's."""


def memory_cause(error: BaseException) -> BaseException | None:
    """The error that led to `error`, of an allocator or of what else takes memory; None if none did."""
    import torch

    seen: BaseException | None = error
    looked_at: set[int] = set()
    while seen is not None and id(seen) not in looked_at:
        looked_at.add(id(seen))
        of_torch = isinstance(seen, torch.OutOfMemoryError) or _type(seen) == _OF_A_DEVICE_TYPE
        if of_torch or is_of_the_host(seen) or _OF_A_DEVICE.search(str(seen)):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def is_of_the_host(error: BaseException) -> bool:
    """Whether it was the machine's own memory, and no device's."""
    without = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    return without or _type(error) in _OF_THE_HOST_TYPES or _OF_THE_CPU in str(error)


def _type(error: BaseException) -> str:
    """Of what a worker raised."""
    return error.type if isinstance(error, WorkerError) else ""
