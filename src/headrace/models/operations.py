"""How many operations training a model takes, and how many its device makes: what MFU is a ratio of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from headrace.models.experts import active_numbers
from headrace.models.packed_lm import PackedLM, output_layer
from headrace.models.packing import MicroBatch
from headrace.models.prefixes import SharedPrefixes
from headrace.models.product_choice import dense_is_faster
from headrace.models.products import product
from headrace.runtime.clock import SystemClock

_FORWARD_AND_BACKWARD = 3
"""A backward pass has two products for each of the forward pass."""
_TRIES = 4


@dataclass(frozen=True, slots=True)
class Computed:
    """What a training pass over a micro-batch computes, there and back."""

    tokens: int = 0
    """Those that several samples begin with count once."""
    operations: float = 0.0


NOTHING = Computed()


class TrainingOperations:
    """Model FLOPs (Chowdhery et al., arXiv:2204.02311, appendix B): of matrix products with weights, and of attention,
    forward and backward; what a pass saves or computes twice does not count. Attention is causal: half of a square. Of
    experts, those that a token meets count; what several samples begin with counts once."""

    def __init__(self, model: Any) -> None:
        """`model`: a decoder of transformers, whole."""
        self._head = _numbers(output_layer(model))
        self._body = _numbers(model) - self._head + active_numbers(model)
        text = model.config.get_text_config()
        heads = int(text.num_attention_heads)
        head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
        self._attention = int(text.num_hidden_layers) * heads * int(head_dim)

    def of(self, lengths: Sequence[int], prefixes: SharedPrefixes | None = None, heads: int | None = None) -> float:
        """Of samples of so many tokens. `prefixes`: what they share; nothing unless given. `heads`: of how many tokens
        the output layer makes logits; of all unless given."""
        tokens = sum(lengths)
        own = lengths if prefixes is None else prefixes.own(lengths).tolist()
        by_weights = 2 * (self._body * sum(own) + self._head * (tokens if heads is None else heads))
        pairs = 0  # of a token and one that it attends to, twice over
        for length, last in zip(lengths, own, strict=True):
            shared = length - last
            pairs += length * (length + 1) - shared * (shared + 1)
        return float(_FORWARD_AND_BACKWARD * (by_weights + 2 * self._attention * pairs))

    def computed(self, lm: PackedLM, micro: MicroBatch) -> Computed:
        """Of a pass of `lm`, of this model, that looks at the tokens of the mask. Waits for the micro-batch's
        device."""
        prefixes = lm.prefixes(micro.tokens, micro.lengths, micro.experts)
        heads = int(micro.mask.sum()) if lm.has_plain_head else None
        return Computed(len(prefixes.kept), self.of(micro.lengths, prefixes, heads))


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


def _numbers(model: nn.Module | None) -> int:
    return 0 if model is None else sum(module.weight.numel() for module in multiplying(model))


def _is_embedding(module: nn.Module) -> bool:
    """Whether it looks rows up; that of a package that splits it up is no class of torch's."""
    return isinstance(module, nn.Embedding) or type(module).__name__.endswith("Embedding")
