"""Which errors say that memory ran out: of an allocator, or of what else takes memory of a device."""

from __future__ import annotations

import re

import torch

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


def is_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or is_of_the_cpu(error) or bool(_OF_A_DEVICE.search(str(error)))


def is_of_the_cpu(error: BaseException) -> bool:
    """Of this host's memory."""
    return _OF_THE_CPU in str(error)
