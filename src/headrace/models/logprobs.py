"""Log-probs of the tokens of a packed row, and what else its logits say of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.models.entropy import entropy
from headrace.models.head_in_pieces import HeadInPieces
from headrace.models.packed_lm import PackedLM
from headrace.models.packing import MicroBatch

Column = Literal["logprob", "entropy", "whole_entropy", "kept_mass", "first_choice"]
"""Of each token, under the policy p = softmax(logits / temperature), at the token's own temperature where it has one.
Where it has a kept set S, p cut to S and renormalised takes the place of p.

`logprob`: of the token. `entropy`: of that distribution, in nats. `whole_entropy`: of p over the whole vocabulary,
without gradient. `kept_mass`: p(S), without gradient; 1 where there is no S. `first_choice`: 1 if no token is more
likely, else 0.
"""

_DIFFERENTIABLE: tuple[Column, ...] = ("logprob", "entropy")
MAX_LOGITS = 2**26
"""Logits held at a time: 256 MiB of float32. Past this the output layer is run in pieces, and again in the backward
pass."""
_TILE = 128
"""Rows that a device's matrix product computes together."""
_CACHED = 2**17
"""Logits looked at at a time where only sums of them are wanted: they stay in a processor's cache."""


def token_logprobs(
    lm: PackedLM, micro: MicroBatch, temperature: float = 1.0, *, max_logits: int = MAX_LOGITS
) -> Tensor:
    """log p(token i | the tokens before it in its sample), [N] float32, differentiable; 0 where `micro.mask` is False.

    See `Column`; computed in float32. The output layer runs only where a token is in the mask. `micro` must be on the
    model's device. `temperature`: unless its tokens have their own.
    """
    return token_columns(lm, micro, ("logprob",), temperature, max_logits=max_logits)[:, 0]


def token_logprobs_and_entropy(
    lm: PackedLM, micro: MicroBatch, temperature: float = 1.0, *, max_logits: int = MAX_LOGITS
) -> tuple[Tensor, Tensor]:
    """`token_logprobs`, and the entropy in nats of the distribution that each is of; [N] float32, differentiable."""
    logprobs, entropy = token_columns(lm, micro, ("logprob", "entropy"), temperature, max_logits=max_logits).unbind(1)
    return logprobs, entropy


def token_columns(
    lm: PackedLM,
    micro: MicroBatch,
    columns: Sequence[Column],
    temperature: float = 1.0,
    *,
    max_logits: int = MAX_LOGITS,
) -> Tensor:
    """The named `columns`, [N, len(columns)] float32, as `token_logprobs` gives the first of them."""
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}; log-probs exist for temperatures above 0 only")
    trained = micro.mask.nonzero().squeeze(1)
    result = torch.zeros((micro.num_tokens, len(columns)), dtype=torch.float32, device=micro.tokens.device)
    if trained.numel() == 0:
        return result
    row = (micro.tokens, micro.positions, micro.lengths)

    def of_logits(logits: Tensor, at: Tensor) -> Tensor:
        if micro.temperatures is not None:
            logits = logits.float() / micro.temperatures[at, None]
        else:
            logits = logits.float() if temperature == 1.0 else logits.float() / temperature
        if (share := lm.vocabulary) is not None:
            kept = None if micro.kept is None else micro.kept.padded(at)
            return share.columns(logits, micro.tokens[at], kept, columns)
        if micro.kept is None:
            return _uncut(logits, micro.tokens[at], columns)
        return _cut(logits, micro.tokens[at], *micro.kept.padded(at), columns)

    if not lm.has_plain_head:
        if micro.experts is not None:
            raise ValueError(f"{type(lm.model).__name__} cannot be told which experts to route to")
        logits = lm.all_logits(*row).index_select(0, trained - 1)
        return result.index_put((trained,), of_logits(logits, trained))
    own = trained if lm.shared is None else lm.shared.own(trained)
    hidden = lm.hidden_states(*row, own - 1, micro.experts)
    piece = _rows_of(max_logits, int(lm.model.config.get_text_config().vocab_size))

    def of_hidden(hidden: Tensor, at: Tensor) -> Tensor:
        return of_logits(lm.head(hidden), at)

    if hidden.shape[0] <= piece:
        chosen = of_hidden(hidden, own)
    else:
        head = HeadInPieces(of_hidden, lm.head_parameters, lm.gradient_sums, piece)
        has_gradient = any(name in _DIFFERENTIABLE for name in columns)
        chosen = (head if has_gradient else head.without_gradient)(hidden, own)
    return result.index_put((trained,), chosen if lm.shared is None else lm.shared.all(chosen, len(trained)))


def _rows_of(max_logits: int, vocab_size: int) -> int:
    """Rows of a piece with so many logits at most: whole tiles, where it has one."""
    rows = max(1, max_logits // vocab_size)
    return rows - rows % _TILE if rows > _TILE else rows


def _uncut(logits: Tensor, targets: Tensor, columns: Sequence[Column]) -> Tensor:
    """[M, V] and [M] to [M, len(columns)]: no token has a kept set."""
    if tuple(columns) == ("logprob",):
        return -F.cross_entropy(logits, targets, reduction="none")[:, None]
    everything = torch.log_softmax(logits, dim=-1)
    found = {"logprob": everything.gather(1, targets[:, None])[:, 0]}
    if "entropy" in columns:
        found["entropy"] = entropy(everything)
    if "whole_entropy" in columns:
        found["whole_entropy"] = _entropy_of_rows(everything)
    if "kept_mass" in columns:
        found["kept_mass"] = torch.ones_like(found["logprob"])
    if "first_choice" in columns:
        found["first_choice"] = (logits.argmax(dim=-1) == targets).to(logits.dtype)
    return torch.stack([found[name] for name in columns], dim=1)


def _cut(logits: Tensor, targets: Tensor, ids: Tensor, possible: Tensor, columns: Sequence[Column]) -> Tensor:
    """As `_uncut`. `ids` [M, K]: the kept sets, where `possible` [M, K]; a row without any is not cut."""
    whole = ~possible.any(dim=1)
    if whole.any():
        result = logits.new_zeros((len(logits), len(columns)))
        cut = ~whole
        result = result.index_put((whole.nonzero()[:, 0],), _uncut(logits[whole], targets[whole], columns))
        if not cut.any():
            return result
        of_cut = _cut(logits[cut], targets[cut], ids[cut], possible[cut], columns)
        return result.index_put((cut.nonzero()[:, 0],), of_cut)
    kept = logits.gather(1, ids).masked_fill(~possible, -torch.inf)
    mass = kept.logsumexp(dim=1)
    found = {"logprob": logits.gather(1, targets[:, None])[:, 0] - mass}
    if "entropy" in columns:
        found["entropy"] = entropy(kept - mass[:, None])
    with torch.no_grad():
        if "whole_entropy" in columns:
            found["whole_entropy"], of_all = _entropy_and_mass(logits)
        elif "kept_mass" in columns:
            of_all = logits.logsumexp(dim=1)
        if "kept_mass" in columns:
            found["kept_mass"] = (mass - of_all).exp()
        if "first_choice" in columns:
            found["first_choice"] = (logits.argmax(dim=-1) == targets).to(logits.dtype)
    return torch.stack([found[name] for name in columns], dim=1)


@torch.no_grad()
def _entropy_of_rows(logprobs: Tensor) -> Tensor:
    """`entropy` without gradient, a few rows at a time."""
    return torch.cat([entropy(part) for part in logprobs.split(_rows(logprobs))])


def _entropy_and_mass(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy of each row's softmax in nats, and its logsumexp; a few rows at a time."""
    entropies, masses = [], []
    for part in logits.split(_rows(logits)):
        masses.append(part.logsumexp(dim=1))
        entropies.append(entropy(part - masses[-1][:, None]))
    return torch.cat(entropies), torch.cat(masses)


def _rows(logits: Tensor) -> int:
    return max(1, _CACHED // logits.shape[1]) if logits.device.type == "cpu" else max(1, 2**24 // logits.shape[1])
