"""Layers of which each token meets a few experts (mixtures of experts), as transformers has them.

A router gives each token a probability for each expert; the `top_k` likeliest compute, and their outputs are added up
with those probabilities as weights (Shazeer et al., arXiv:1701.06538). No auxiliary loss that spreads tokens evenly
over experts is added to a policy's loss: it would pull on what the reward asks for.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from headrace.models.routing import ROUTED_TYPES


def experts_per_token(config: Any) -> int:
    """How many experts each token meets in a layer; 0 for a model without. `config`: of transformers."""
    text = config.get_text_config()
    experts = getattr(text, "num_local_experts", None) or getattr(text, "num_experts", None) or 0
    return int(getattr(text, "num_experts_per_tok", None) or 0) if experts else 0


def routed_bytes(config: Any) -> int:
    """That which experts a token was routed to takes at most, in all layers (`models/routing.py`). 0 of a model whose
    routers cannot be told."""
    text = config.get_text_config()
    if text.model_type not in ROUTED_TYPES:
        return 0
    itemsize = 1 if text.num_experts <= 256 else 2
    return int(text.num_hidden_layers) * experts_per_token(config) * itemsize


def active_numbers(model: Any) -> int:
    """Of the weights of all experts, so many as one token is multiplied by."""
    chosen = experts_per_token(model.config)
    return sum(weight.numel() // len(weight) * chosen for weight in expert_weights(model)) if chosen else 0


def numbers_met(layer: nn.Module, config: Any) -> int:
    """Of the weights of a layer, so many as one token is multiplied by."""
    idle = sum(
        weight.numel() * (len(weight) - experts_per_token(config)) // len(weight) for weight in expert_weights(layer)
    )
    return sum(parameter.numel() for parameter in layer.parameters()) - idle


def expert_weights(model: nn.Module) -> list[nn.Parameter]:
    """[experts, out, in] each: the matrices of all experts of a layer in one parameter."""
    return [parameter for parameter in model.parameters() if parameter.ndim == 3]
