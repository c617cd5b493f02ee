"""Passes that keep less, and compute more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.config import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def checkpoint_gradients(model: PreTrainedModel) -> None:
    """Have it compute a layer's states again for the backward pass. Raises ConfigError if it cannot."""
    if not model.supports_gradient_checkpointing:
        raise ConfigError(
            f"model.gradient_checkpointing is true, but {type(model).__name__} does not support it; set it to false"
        )
    # transformers checkpoints in train mode only.
    model.train()
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
