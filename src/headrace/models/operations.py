"""How many operations training a model takes, and how many its device makes: what MFU is a ratio of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from headrace.models.experts import active_numbers
from headrace.models.product_choice import dense_is_faster
from headrace.models.products import product
from headrace.runtime.clock import SystemClock

_FORWARD_AND_BACKWARD = 3
"""A backward pass has two products for each of the forward pass."""
_TRIES = 4


class TrainingOperations:
    """Model FLOPs (Chowdhery et al., arXiv:2204.02311, appendix B): of matrix products with weights, and of attention,
    forward and backward; what a pass saves or computes twice does not count. Attention is causal: half of a square. Of
    experts, those that a token meets count."""

    def __init__(self, model: Any) -> None:
        """`model`: a decoder of transformers, whole."""
        self._weights = sum(module.weight.numel() for module in multiplying(model)) + active_numbers(model)
        text = model.config.get_text_config()
        heads = int(text.num_attention_heads)
        head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
        self._attention = int(text.num_hidden_layers) * heads * int(head_dim)

    def of(self, lengths: Sequence[int]) -> float:
        """Of samples of so many tokens."""
        by_weights = 2 * self._weights * sum(lengths)
        by_attention = 2 * self._attention * sum(length * (length + 1) for length in lengths)
        return float(_FORWARD_AND_BACKWARD * (by_weights + by_attention))


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of a product of two large square matrices of random numbers: the best of a few. As fast as
    this thread may compute now. Blocking, a tenth of a second or so."""
    width = 768 if device.type == "cpu" else 8192
    own = torch.Generator(device).manual_seed(0)  # no model's draws depend on it
    left, right = (torch.randn(width, width, device=device, generator=own).to(dtype) for _ in range(2))
    multiply = product if dense_is_faster(device, dtype) else torch.matmul
    best, now = float("inf"), SystemClock().now
    for _ in range(1 + _TRIES):  # the first one finds its kernel
        began = now()
        made = multiply(left, right)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        best = min(best, now() - began)
        del made
    return 2 * width**3 / best


def multiplying(model: nn.Module) -> list[Any]:
    """The modules that multiply by a matrix, their `weight`; the output layer also where the embedding is the same."""
    found = []
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, nn.Parameter) and weight.ndim == 2 and not _is_embedding(module):
            found.append(module)
    return found


def _is_embedding(module: nn.Module) -> bool:
    """Whether it looks rows up; that of a package that splits it up is no class of torch's."""
    return isinstance(module, nn.Embedding) or type(module).__name__.endswith("Embedding")
