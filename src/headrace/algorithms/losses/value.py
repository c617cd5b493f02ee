"""The critic's loss."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.algorithms.losses.terms import Loss
from headrace.algorithms.segments import keep


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, *, clip: float | None = None) -> Loss:
    """(values - returns)^2 / 2, all `[N]`; with `clip`, the larger of that and of the clipped values'.

    Clipped values stay within `clip` of `old_values`, those that the advantages were estimated with. Schulman et
    al. 2017, arXiv 1707.06347, eq. 9; the clip and the 1/2 are those of its published code, of TRL, verl and
    OpenRLHF. Gradients flow through `values` alone.

    Stats: `tokens`; `value`, `return` and `squared_error` (sums, before any clamping); `clipped` (tokens where the
    clip took the gradient away).

    Raises ValueError unless clip is above 0.
    """
    if clip is not None and not clip > 0:
        raise ValueError(f"clip is {clip}; use more than 0, or None for no clip")
    values, returns = keep(values, mask), keep(returns.detach(), mask)
    plain = (values - returns).square()
    per_token, beyond = plain, torch.zeros_like(mask)
    if clip is not None:
        old = keep(old_values.detach(), mask)
        clipped = (old + (values - old).clamp(-clip, clip) - returns).square()
        beyond = ((clipped > plain) & ((values - old).abs() > clip)).detach()
        per_token = torch.where(beyond, clipped, plain)
    stats = {
        "tokens": mask.sum().to(values.dtype),
        "value": values.detach().sum(),
        "return": returns.sum(),
        "squared_error": plain.detach().sum(),
        "clipped": beyond.sum().to(values.dtype),
    }
    return Loss(per_token=per_token / 2, stats=stats)
