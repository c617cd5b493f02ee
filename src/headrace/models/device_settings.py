"""What torch is told once in a process that computes on a CUDA device."""

from __future__ import annotations

import os

import torch

CUBLAS_CONFIG = "CUBLAS_WORKSPACE_CONFIG"
IN_ONE_ORDER = ":4096:8"
"""With which cuBLAS can sum in one order."""


def settle(device: torch.device) -> None:
    """Before the first product there: cuBLAS is looked at then, and never again. Nothing is done for a CPU.

    Float32 is float32, whatever the environment says of it (images of NVIDIA's have TF32 on): log-probs are compared
    there to 1e-4. Attention is never cuDNN's, which torch prefers from Hopper on: it makes a plan for each new shape,
    which takes tenths of a second, and nearly every prefill and every micro-batch has another shape.
    """
    if device.type == "cuda":
        os.environ.setdefault(CUBLAS_CONFIG, IN_ONE_ORDER)
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.enable_cudnn_sdp(False)
