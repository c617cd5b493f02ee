"""Routers of tensor ranks: all of them have its weights, and each routes tokens of its own."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.parallel import ParallelStyle

from headrace.models.parallel.own_part import own_part
from headrace.models.routing import gates


class OfOwnTokens(ParallelStyle):
    """Of a router (`headrace.models.routing`): the gradients of its weights are sums over the ranks of the mesh."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        router: Any = module
        whole = DTensor.from_local(router.weight.detach(), device_mesh, [Replicate()], run_check=False)
        router.weight = nn.Parameter(whole)
        router.forward = MethodType(_forward, router)
        return module


def _forward(router: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[..., D] to logits [N, experts], and of each token's experts the gates and the numbers, [N, k]."""
    logits = F.linear(hidden.reshape(-1, hidden.shape[-1]), own_part(router.weight, [Partial()]))
    chosen = torch.softmax(logits, dim=-1, dtype=torch.float32).topk(router.top_k, dim=-1).indices
    return logits, gates(router, logits, chosen), chosen
