"""The head of a classifier of tokens among tensor ranks: a few rows, which all of them have."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ParallelStyle

from headrace.models.parallel.own_part import own_part


class WholeHead(ParallelStyle):
    """Of a linear layer that all ranks of the mesh compute over the same states, of which they make the same loss: each
    has the whole gradient of its weights, which are not added up, and of the states."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        head: Any = module
        for name, own in [*head.named_parameters(recurse=False)]:
            whole = DTensor.from_local(own.detach(), device_mesh, [Replicate()], run_check=False)
            setattr(head, name, nn.Parameter(whole))
        head.forward = MethodType(_forward, head)
        return module


def _forward(head: Any, hidden: Tensor) -> Tensor:
    """[M, hidden] to [M, classes]."""
    bias = head.bias
    return F.linear(hidden, own_part(head.weight), None if bias is None else own_part(bias))
