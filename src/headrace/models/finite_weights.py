"""Weights must be numbers: one NaN makes every logit NaN."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from headrace.config import ConfigError

_SHOWN = 3


def check_finite(path: str, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raises ConfigError that names the floating-point tensors in which there is a NaN or an infinity."""
    bad = [name for name, tensor in tensors if tensor.is_floating_point() and not _is_finite(tensor)]
    if bad:
        raise ConfigError(
            f"{len(bad)} tensors of model {path!r} are not finite, with NaN or infinity in them "
            f"({', '.join(bad[:_SHOWN])}{', ...' if len(bad) > _SHOWN else ''}): nothing could be computed with them; "
            "give an earlier checkpoint, or save the model again"
        )


@torch.no_grad()
def _is_finite(tensor: torch.Tensor) -> bool:
    """One pass without a copy: the least and the greatest of what has a NaN in it are NaN."""
    if tensor.numel() == 0:
        return True
    return bool(torch.isfinite(torch.stack(torch.aminmax(tensor))).all())
