"""Log-probs of the tokens of a packed row."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headrace.models.packed_lm import PackedLM
from headrace.models.packing import MicroBatch

_MAX_LOGITS = 2**26
"""Logits held at a time: 256 MiB of float32. Past this the output layer is run in pieces, and again in the backward
pass."""


def token_logprobs(
    lm: PackedLM, micro: MicroBatch, temperature: float = 1.0, *, max_logits: int = _MAX_LOGITS
) -> Tensor:
    """log p(token i | the tokens before it in its sample), [N] float32, differentiable; 0 where `micro.mask` is False.

    p is the softmax of logits / temperature over the whole vocabulary, computed in float32. The output layer runs
    only where a token is in the mask. `micro` must be on the model's device.
    """
    return _token_columns(lm, micro, temperature, 1, max_logits)[:, 0]


def token_logprobs_and_entropy(
    lm: PackedLM, micro: MicroBatch, temperature: float = 1.0, *, max_logits: int = _MAX_LOGITS
) -> tuple[Tensor, Tensor]:
    """`token_logprobs`, and the entropy of p at each of those tokens in nats; both [N] float32 and differentiable."""
    columns = _token_columns(lm, micro, temperature, 2, max_logits)
    return columns[:, 0], columns[:, 1]


def _token_columns(lm: PackedLM, micro: MicroBatch, temperature: float, count: int, max_logits: int) -> Tensor:
    """[N, count]: log-prob, entropy."""
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}; log-probs exist for temperatures above 0 only")
    trained = micro.mask.nonzero().squeeze(1)
    result = torch.zeros((micro.num_tokens, count), dtype=torch.float32, device=micro.tokens.device)
    if trained.numel() == 0:
        return result
    targets = micro.tokens[trained]
    row = (micro.tokens, micro.positions, micro.lengths)
    if lm.has_plain_head:
        hidden = lm.hidden_states(*row, trained - 1)
        chosen = _from_hidden(lm, hidden, targets, temperature, count, max_logits)
    else:
        logits = lm.all_logits(*row).index_select(0, trained - 1)
        chosen = _from_logits(logits, targets, temperature, count)
    return result.index_put((trained,), chosen)


def _from_hidden(
    lm: PackedLM, hidden: Tensor, targets: Tensor, temperature: float, count: int, max_logits: int
) -> Tensor:
    """[M, hidden] and [M] to [M, count] float32, with at most `max_logits` logits at a time."""

    def chosen(hidden: Tensor, targets: Tensor) -> Tensor:
        return _from_logits(lm.head(hidden), targets, temperature, count)

    piece = max(1, max_logits // lm.model.config.get_text_config().vocab_size)
    if hidden.shape[0] <= piece:
        return chosen(hidden, targets)
    pieces = zip(hidden.split(piece), targets.split(piece), strict=True)
    return torch.cat([checkpoint(chosen, *part, use_reentrant=False, preserve_rng_state=False) for part in pieces])


def _from_logits(logits: Tensor, targets: Tensor, temperature: float, count: int) -> Tensor:
    """[M, vocabulary] and [M] to [M, count] float32."""
    logits = logits.float() if temperature == 1.0 else logits.float() / temperature
    chosen = -F.cross_entropy(logits, targets, reduction="none")
    if count == 1:
        return chosen[:, None]
    everything = torch.log_softmax(logits, dim=-1)
    # A logit of -inf has probability 0 and adds nothing; the product would be NaN.
    entropy = -(everything.exp() * everything.clamp(min=torch.finfo(torch.float32).min)).sum(-1)
    return torch.stack([chosen, entropy], dim=1)
