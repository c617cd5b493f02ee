"""RMS normalisation in few passes over memory: on a CPU with a backward pass written out, on a CUDA device by torch's
fused kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headrace.models.memory_errors import memory_cause

Norm = Callable[[Tensor, Tensor, float], Tensor]
_PROBE_ROWS = 3
_TOLERANCE = 1e-5


def use_fast_norms(model: nn.Module, device: torch.device | None = None) -> int:
    """Give each RMS normalisation of `model` the forward pass of `rms_norm`, or torch's own on a CUDA device. Returns
    how many took it.

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
        norm = _NORMS.get(where.type)
        if norm is not None and _agrees(module, norm, weight, eps):
            module.forward = partial(_forward, module, norm, eps)
            count += 1
    return count


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, [..., D] and [D] to [..., D]; differentiable once.

    Zhang and Sennrich 2019, arXiv 1910.07467, eq. 4. The quotient is computed in float32 and rounded to x's dtype,
    then multiplied, as Llama does.
    """
    result: Tensor = _RmsNorm.apply(x, weight, eps)
    return result


def fused_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As `rms_norm` by torch, which rounds once, at the end."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


_NORMS = {"cpu": rms_norm, "cuda": fused_rms_norm}
"""By type of device."""


def _forward(module: Any, norm: Norm, eps: float, hidden_states: Tensor) -> Tensor:
    return norm(hidden_states, module.weight, eps)


@torch.no_grad()
def _agrees(module: nn.Module, norm: Norm, weight: nn.Parameter, eps: float) -> bool:
    generator = torch.Generator().manual_seed(0)
    place = weight.device if not weight.is_meta else torch.device("cpu")
    x = torch.randn(_PROBE_ROWS, weight.shape[-1], generator=generator).to(place, weight.dtype)
    # Weights that are all 1 would not tell what is done with them.
    others = torch.rand(weight.shape, generator=generator).to(place, weight.dtype)
    module._parameters["weight"] = nn.Parameter(others, requires_grad=False)
    try:
        ours, own = norm(x, others, eps), module(x)
    except (RuntimeError, TypeError) as cause:
        if memory_cause(cause) is not None:
            raise
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
        normed = (x.float() * scale).to(x.dtype)
        ctx.save_for_backward(normed if x.dtype == torch.float32 else x, weight, scale)
        return normed * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        """With n = x s the normalised x and u = g w: dx = s (u - n mean(u n)), dw = sum of g n over rows."""
        kept, weight, scale = ctx.saved_tensors
        rows, grad = (each.reshape(-1, kept.shape[-1]) for each in (kept, grads[0]))
        way = _exactly if kept.dtype == torch.float32 else _in_few_passes
        by_x, by_weight = way(rows, grad, weight, scale.view(-1, 1), ctx.needs_input_grad[1])
        return by_x.view(kept.shape), by_weight, None


def _exactly(
    normed: Tensor, grad: Tensor, weight: Tensor, scale: Tensor, wants_weight: bool
) -> tuple[Tensor, Tensor | None]:
    """From normalised rows. What a row comes to does not depend on how many there are."""
    by_weight = (grad * normed).sum(0) if wants_weight else None
    up = grad * weight
    inner = torch.matmul(up[:, None, :], normed[:, :, None])[:, 0]
    return up.addcmul_(normed, inner, value=-1.0 / normed.shape[1]).mul_(scale), by_weight


def _in_few_passes(
    rows: Tensor, grad: Tensor, weight: Tensor, scale: Tensor, wants_weight: bool
) -> tuple[Tensor, Tensor | None]:
    """From rows as they were. The kernel of layer normalisation, which takes x - m for a given m = 0, makes
    s (u - n mean(u n) - mean(u)). Sums over rows are products with a row, added up in float32."""
    width = rows.shape[1]
    given = (grad, rows, [width], torch.zeros_like(scale), scale, weight.float(), None, (True, False, False))
    by_x: Tensor = torch.ops.aten.native_layer_norm_backward(*given)[0]
    mean = torch.mm(grad, weight[:, None]).float().div_(width)
    by_x.add_(mean.mul_(scale).to(by_x.dtype))
    return by_x, torch.mm(scale.t().to(rows.dtype), grad * rows)[0] if wants_weight else None
