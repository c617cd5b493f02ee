"""A function called between the layers of a model, in the forward and in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from headrace.models.operations import multiplying


def call_between_layers(model: nn.Module, function: Callable[[], None]) -> None:
    """Have `function` called before each matrix product with a weight, and in the backward pass after it.

    It runs on the thread that computes, which for a CPU is the same in both.
    """

    def before(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        function()
        if inputs and isinstance(inputs[0], Tensor) and inputs[0].requires_grad:
            inputs[0].register_hook(after)

    def after(grad: Tensor) -> None:
        function()

    for module in multiplying(model):
        module.register_forward_pre_hook(before)
