"""Many tensors copied at once: on a device, in few kernels."""

from __future__ import annotations

from collections.abc import Iterable

import torch


@torch.no_grad()
def copy_each(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Into the first of each pair the second, of its shape. On a device it has only been started when this
    returns, as with `copy_`."""
    alike: dict[tuple[torch.device, torch.dtype, torch.device, torch.dtype], list[tuple[torch.Tensor, torch.Tensor]]]
    alike = {}
    for into, source in pairs:
        alike.setdefault((into.device, into.dtype, source.device, source.dtype), []).append((into, source))
    for found in alike.values():
        torch._foreach_copy_([into for into, _ in found], [source.detach() for _, source in found])
