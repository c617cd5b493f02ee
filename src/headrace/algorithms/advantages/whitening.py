"""Zero mean and unit variance over the trained tokens of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.algorithms.segments import as_float, keep


def whiten(x: Tensor, mask: Tensor) -> Tensor:
    """(x - mean) / sqrt(variance + 1e-8) over the tokens inside the mask, `[N]`; 0 outside, and for one alone.

    The variance is unbiased (n - 1), and the 1e-8 is under the root, as in TRL and verl (OpenRLHF and AReaL take
    the biased one). `x` must be the whole batch: whitened micro-batches do not add up to it. Equal values give
    exactly 0, and a mean far from 0 costs no digits: distances from the lowest value are centred, and only then
    squared, all in float64.
    """
    values = as_float(x.detach())[mask]
    whitened = torch.zeros(x.shape, dtype=values.dtype, device=x.device)
    if values.numel() < 2:
        return whitened
    exact = values.double()
    centred = exact - exact.min()
    centred = centred - centred.mean()
    centred = centred - centred.mean()  # what rounding of the first mean left
    variance = centred.square().sum() / (values.numel() - 1)
    whitened[mask] = (centred * torch.rsqrt(variance + 1e-8)).to(values.dtype)
    return keep(whitened, mask)
