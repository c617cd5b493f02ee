"""Logits to tokens, for a batch of sequences with parameters of their own."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headrace.engines.embedded.noise import uniform


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Parameters of n sequences; tensors of shape [n] on the logits' device."""

    temperature: torch.Tensor
    """Float32; 1 where the row is greedy."""
    greedy: torch.Tensor
    top_k: torch.Tensor
    """Int64; the vocabulary's size where there is no limit."""
    top_p: torch.Tensor
    streams: torch.Tensor
    """Int64, see `noise.stream_of`."""
    some_greedy: bool
    some_scaled: bool
    some_truncated: bool


def sample(logits: torch.Tensor, rows: SamplingRows, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (int64) and their log-probs (float32), both [n], from float32 logits [n, V].

    `positions` are the places of the new tokens in prompt + response. The log-prob is of the distribution sampled
    from: softmax(logits / temperature), cut to the top k, then to the smallest set of mass >= top p, renormalised.
    Greedy rows report softmax(logits). A row's token and log-prob do not depend on the other rows; a row whose logits
    are not numbers gets some token, and a log-prob that is not finite.
    """
    if rows.some_scaled:
        logits = logits / rows.temperature[:, None]
    probs = torch.softmax(logits, dim=-1)
    if rows.some_truncated:
        probs = probs * _kept(probs, rows)
    mass = probs.cumsum(dim=-1)
    total = mass[:, -1:]
    # The first index whose cumulated mass exceeds u x total: one with probability > 0, as u < 1.
    draw = uniform(rows.streams, positions)[:, None] * total
    tokens = torch.searchsorted(mass, draw, right=True).clamp_(max=logits.shape[1] - 1)
    if rows.some_greedy:
        tokens = torch.where(rows.greedy[:, None], probs.argmax(dim=-1, keepdim=True), tokens)
    logprobs = (probs.gather(1, tokens) / total).log()
    return tokens[:, 0], logprobs[:, 0]


def _kept(probs: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """Bool [n, V]: the tokens left by top-k, then top-p over what top-k left. Equal ones: the lower id first."""
    ordered, ids = probs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(probs.shape[1], device=probs.device)
    ordered = ordered * (rank < rows.top_k[:, None])
    mass = ordered.cumsum(dim=-1)
    before = mass - ordered
    enough = rows.top_p[:, None] * mass[:, -1:]
    keep = (rank < rows.top_k[:, None]) & ((before < enough) | (rows.top_p[:, None] >= 1.0))
    keep[:, 0] = True
    return torch.empty_like(keep).scatter_(1, ids, keep)
