"""Of distributions over a vocabulary, in nats."""

from __future__ import annotations

from torch import Tensor

_NO_PROBABILITY = -200.0
"""A log-prob whose probability is 0 in float32."""


def entropy(logprobs: Tensor) -> Tensor:
    """Of each row of log-probs [..., V], in nats [...]; differentiable."""
    # A log-prob of -inf has probability 0 and adds nothing; the product would be NaN, and so would the gradient below
    # a bound that overflows when it is multiplied.
    return -(logprobs.exp() * logprobs.clamp(min=_NO_PROBABILITY)).sum(-1)
