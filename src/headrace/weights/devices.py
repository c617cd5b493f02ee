"""Names of devices, the same in all processes, whichever of them each one sees."""

from __future__ import annotations

import torch

from headrace.weights.seen import CPU


def device_name(device: torch.device) -> str:
    """The uuid of a CUDA device; `CPU` for any other."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else CPU


def device_named(name: str) -> torch.device | None:
    """None for a CUDA device that this process does not see."""
    if name == CPU:
        return torch.device(CPU)
    return next((device for device in _cuda_here() if device_name(device) == name), None)


def nccl_devices() -> tuple[str, ...]:
    """Names of those by which this process can speak NCCL."""
    if not torch.distributed.is_nccl_available():
        return ()
    return tuple(device_name(device) for device in _cuda_here())


def _cuda_here() -> list[torch.device]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.device("cuda", index) for index in range(count)]
