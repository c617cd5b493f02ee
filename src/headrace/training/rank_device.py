"""Which device a rank's worker computes on."""

from __future__ import annotations

import os

import torch

from headrace.config import ConfigError


def rank_device(first: str, rank: int) -> torch.device:
    """The one of this rank, where ranks have CUDA devices of their own, from `first` on. One that a cluster gives a
    worker is all that it sees."""
    device = torch.device(first)
    if device.type != "cuda" or not rank or torch.cuda.device_count() == 1:
        return device
    return torch.device("cuda", (device.index or 0) + rank)


def numbered_device(first: str, number: int) -> torch.device:
    """The one of the rank of this number among those that a launcher began on this machine, from `first` on. Raises
    ConfigError where the machine has no such device."""
    device, there = torch.device(first), torch.cuda.device_count()
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if device.type != "cuda" or (there == 1 and shown):  # a launcher may have shown each rank one of its own
        return device
    begins = device.index or 0
    if number >= there - begins:
        told = "" if shown is None else f", CUDA_VISIBLE_DEVICES being {shown!r}"
        fewer = f"begin at most {there - begins} ranks there (--nproc-per-node), " if there > begins else ""
        raise ConfigError(
            f"this is rank {number} of its machine, counted from 0, each has a CUDA device of its own from {first} on, "
            f"and there are {there} of them{told}; {fewer}show it more devices, or set model.device: cpu"
        )
    return torch.device("cuda", begins + number)
