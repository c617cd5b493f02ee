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
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}; log-probs exist for temperatures above 0 only")
    trained = micro.mask.nonzero().squeeze(1)
    result = torch.zeros(micro.num_tokens, dtype=torch.float32, device=micro.tokens.device)
    if trained.numel() == 0:
        return result
    targets = micro.tokens[trained]
    row = (micro.tokens, micro.positions, micro.lengths)
    if lm.has_plain_head:
        hidden = lm.hidden_states(*row, trained - 1)
        chosen = _from_hidden(lm, hidden, targets, temperature, max_logits)
    else:
        chosen = _from_logits(lm.all_logits(*row).index_select(0, trained - 1), targets, temperature)
    return result.index_put((trained,), chosen)


def _from_hidden(lm: PackedLM, hidden: Tensor, targets: Tensor, temperature: float, max_logits: int) -> Tensor:
    """[M, hidden] and [M] to [M] float32, with at most `max_logits` logits at a time."""

    def chosen(hidden: Tensor, targets: Tensor) -> Tensor:
        return _from_logits(lm.head(hidden), targets, temperature)

    piece = max(1, max_logits // lm.model.config.get_text_config().vocab_size)
    if hidden.shape[0] <= piece:
        return chosen(hidden, targets)
    pieces = zip(hidden.split(piece), targets.split(piece), strict=True)
    return torch.cat([checkpoint(chosen, *part, use_reentrant=False, preserve_rng_state=False) for part in pieces])


def _from_logits(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """[M, vocabulary] and [M] to [M] float32."""
    logits = logits.float() if temperature == 1.0 else logits.float() / temperature
    return -F.cross_entropy(logits, targets, reduction="none")
