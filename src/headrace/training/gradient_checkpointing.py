"""Passes that keep less, and compute more."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from headrace.config import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def checkpoint_gradients(model: PreTrainedModel) -> None:
    """Have it, which is in eval mode, compute a layer's states again for the backward pass. Raises ConfigError if it
    cannot."""
    if not model.supports_gradient_checkpointing:
        raise ConfigError(
            f"model.gradient_checkpointing is true, but {type(model).__name__} does not support it; set it to false"
        )
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    layer: Any
    for layer in model.modules():
        if getattr(layer, "gradient_checkpointing", False):
            # transformers checkpoints what is in train mode; what is below stays in eval: routers draw noise in train.
            layer.training = True
            if (checkpoint := getattr(layer, "_gradient_checkpointing_func", None)) is not None:
                layer._gradient_checkpointing_func = partial(_in_eval, checkpoint, layer)


def _in_eval(
    checkpoint: Callable[..., Any], layer: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """`checkpoint` of `forward`, which computes as in eval mode: some layers drop themselves what they add."""

    def quietly(*given: Any, **named: Any) -> Any:
        layer.training = False
        try:
            return forward(*given, **named)
        finally:
            layer.training = True

    return checkpoint(quietly, *args, **kwargs)
