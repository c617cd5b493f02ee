"""Policies are trained without dropout: the log-probs that are trained must be those of the policy that samples."""

from __future__ import annotations

from torch import nn


def remove_dropout(model: nn.Module) -> None:
    """Set every dropout probability in the modules of `model` to 0; its config keeps what it says."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and ("dropout" in name or name == "layerdrop"):
                setattr(module, name, 0.0)
