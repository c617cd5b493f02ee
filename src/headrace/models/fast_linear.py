"""Linear layers whose products go the faster way of a CPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headrace.models.product_choice import dense_is_faster
from headrace.models.products import linear


def use_fast_products(model: nn.Module, device: torch.device, dtype: torch.dtype) -> int:
    """Give each linear layer of `model`, which computes there and in that dtype, the forward and backward pass of
    `linear`, where that is faster. Returns how many took it."""
    if not dense_is_faster(device, dtype):
        return 0
    layers = [module for module in model.modules() if type(module) is nn.Linear]
    for layer in layers:
        layer.forward = partial(_forward, layer)  # type: ignore[method-assign]
    return len(layers)


def _forward(layer: Any, x: Tensor) -> Tensor:
    weight = layer.weight
    is_plain = type(weight) in (Tensor, nn.Parameter)  # ranks that split a matrix have a tensor of their own kind
    if is_plain and x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32 and x.ndim > 1:
        return linear(x, weight, layer.bias)
    return F.linear(x, weight, layer.bias)
