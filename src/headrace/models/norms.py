"""RMS normalisation with a backward pass written out: on a CPU half of the passes over memory that autograd makes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

_PROBE_ROWS = 3
_TOLERANCE = 1e-5


def use_written_out_norms(model: nn.Module, device: torch.device | None = None) -> int:
    """Give each RMS normalisation of `model` (on a CPU) the forward pass of `rms_norm`. Returns how many took it.

    Only those that compute the same on a few random rows: architectures differ in what they do with the weight.
    `device`: where weights without memory will be.
    """
    count = 0
    for module in model.modules():
        eps = getattr(module, "variance_epsilon", None) or getattr(module, "eps", None)
        weight = getattr(module, "weight", None)
        if "RMSNorm" not in type(module).__name__ or not isinstance(weight, nn.Parameter) or not isinstance(eps, float):
            continue
        where = device if device is not None and weight.is_meta else weight.device
        if where.type == "cpu" and _agrees(module, weight, eps):
            module.forward = partial(_forward, module, eps)
            count += 1
    return count


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, [..., D] and [D] to [..., D]; differentiable once.

    Zhang and Sennrich 2019, arXiv 1910.07467, eq. 4. The quotient is computed in float32 and rounded to x's dtype,
    then multiplied, as Llama does.
    """
    result: Tensor = _RmsNorm.apply(x, weight, eps)
    return result


def _forward(module: Any, eps: float, hidden_states: Tensor) -> Tensor:
    return rms_norm(hidden_states, module.weight, eps)


@torch.no_grad()
def _agrees(module: nn.Module, weight: nn.Parameter, eps: float) -> bool:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_PROBE_ROWS, weight.shape[-1], generator=generator).to(weight.dtype)
    # Weights that are all 1 would not tell what is done with them.
    others = nn.Parameter(torch.rand(weight.shape, generator=generator).to(weight.dtype), requires_grad=False)
    module._parameters["weight"] = others
    try:
        ours, own = rms_norm(x, others, eps), module(x)
    except (RuntimeError, TypeError):
        return False
    finally:
        module._parameters["weight"] = weight
    tolerance = _TOLERANCE if weight.dtype == torch.float32 else float(torch.finfo(weight.dtype).eps) * 4
    return ours.shape == own.shape and bool((ours - own).abs().max() <= tolerance)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = (norm.square_() / x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (x.float() * scale).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        """With n = x s the normalised x and u = g w: dx = s (u - n mean(u n)), dw = sum of g n over rows.

        The kernel of layer normalisation, which takes x - m for a given m = 0, makes s (u - n mean(u n) - mean(u)).
        """
        x, weight, scale = ctx.saved_tensors
        width = x.shape[-1]
        rows, grad, scale = x.reshape(-1, width), grads[0].reshape(-1, width), scale.view(-1, 1)
        given = (grad, rows, [width], torch.zeros_like(scale), scale, weight.float(), None, (True, False, False))
        by_x = torch.ops.aten.native_layer_norm_backward(*given)[0]
        mean = torch.mm(grad, weight[:, None]).float() / width
        by_x.add_(mean.mul_(scale).to(by_x.dtype))
        by_weight = None
        if ctx.needs_input_grad[1]:
            products = grad * rows
            if products.dtype == torch.float32:
                by_weight = products.mul_(scale).sum(0)
            else:  # added up in float32, in one pass
                by_weight = torch.mm(scale.t().to(products.dtype), products)[0]
        return by_x.view(x.shape), by_weight, None
