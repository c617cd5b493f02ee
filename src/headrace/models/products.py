"""Products of rows with a matrix on a CPU, x W^T, by oneDNN. `torch.mm` takes another library for float32, which has no
fast kernels for some processors; which of the two is the faster one, `product_choice` measures.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
_PACKED_FOR = 64
"""Rows: what a matrix is laid out for when it is packed. It is as good for any number from two on."""


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b by oneDNN: [N, in], [out, in] and [out] to [N, out]. Of one dtype; x and W may be views, and W as
    `packed` gives it. Not differentiable."""
    if not x.shape[1]:  # oneDNN has no sums of nothing
        return F.linear(x, weight, bias)
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result


def packed(weight: Tensor) -> Tensor:
    """[out, in] as oneDNN wants it: a tensor that only the functions of this module read, of the same size."""
    result: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR)
    return result


def product_onto(hidden: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """hidden + x W^T + b in one pass over memory; see `product`."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, hidden, weight, bias, "add")
    return result


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b by oneDNN: [..., in], [out, in] and [out] to [..., out]; differentiable once."""
    rows = _Linear.apply(x.flatten(0, -2), weight, bias)
    result: Tensor = rows.unflatten(0, x.shape[:-1])
    return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """dx = g W, dW = g^T x, db = the sum of g over rows."""
        (grad,) = grads
        x, weight = ctx.saved_tensors
        by_x = product(grad, weight.t()) if ctx.needs_input_grad[0] else None
        by_weight = product(grad.t(), x.t()) if ctx.needs_input_grad[1] else None
        return by_x, by_weight, grad.sum(0) if ctx.needs_input_grad[2] else None
