"""Logits to tokens, for a batch of sequences with parameters of their own."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headrace.engines.embedded.largest import largest
from headrace.engines.embedded.noise import uniform


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Parameters of n sequences; tensors of shape [n] on the logits' device."""

    temperature: torch.Tensor
    """Float32; 1 where the row is greedy."""
    greedy: torch.Tensor
    truncated: torch.Tensor
    """Where there is a limit by top-k or top-p; never where the row is greedy."""
    top_k: torch.Tensor
    """Int64; the vocabulary's size where there is no limit."""
    top_p: torch.Tensor
    streams: torch.Tensor
    """Int64, see `noise.stream_of`."""
    some_greedy: bool
    some_scaled: bool
    some_truncated: bool
    some_whole: bool
    """Whether any is not truncated."""
    most_kept: int
    """Largest `top_k` of the truncated rows."""


@dataclass(frozen=True, slots=True)
class Sampled:
    tokens: torch.Tensor
    """Int64 [n]."""
    logprobs: torch.Tensor
    """Float32 [n], of the distribution that was sampled from."""
    kept: Kept | None = None
    """Where any row is truncated."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What truncation left of each row."""

    ids: torch.Tensor
    """Int32 or int64 [n, K]: the first `counts` of a row are its kept set, in no particular order."""
    counts: torch.Tensor
    """Int64 [n], 1 or more; 0 where a row is not truncated."""


def sample(logits: torch.Tensor, rows: SamplingRows, positions: torch.Tensor) -> Sampled:
    """A token for each row of float32 logits [n, V].

    `positions` are the places of the new tokens in prompt + response. The log-prob is of the distribution sampled
    from: softmax(logits / temperature), cut to the top k, then to the smallest set of mass >= top p, renormalised.
    Greedy rows report softmax(logits). A row's token and log-prob do not depend on the other rows; a row whose logits
    are not numbers gets some token, and a log-prob that is not finite.
    """
    if rows.some_scaled:
        logits = logits / rows.temperature[:, None]
    draws = uniform(rows.streams, positions)[:, None]
    if not rows.some_truncated:
        return Sampled(*_from_all(logits, rows, draws))
    tokens, logprobs, kept = _from_kept(logits, rows, draws)
    if rows.some_whole:
        of_all = _from_all(logits, rows, draws)
        tokens = torch.where(rows.truncated, tokens, of_all[0])
        logprobs = torch.where(rows.truncated, logprobs, of_all[1])
    return Sampled(tokens, logprobs, kept)


def _from_all(logits: torch.Tensor, rows: SamplingRows, draws: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    probs = torch.softmax(logits, dim=-1)
    mass = probs.cumsum(dim=-1)
    total = mass[:, -1:]
    # The first index whose cumulated mass exceeds u x total: one with probability > 0, as u < 1.
    tokens = torch.searchsorted(mass, draws * total, right=True).clamp_(max=logits.shape[1] - 1)
    if rows.some_greedy:
        tokens = torch.where(rows.greedy[:, None], probs.argmax(dim=-1, keepdim=True), tokens)
    return tokens[:, 0], (probs.gather(1, tokens) / total).log()[:, 0]


def _from_kept(
    logits: torch.Tensor, rows: SamplingRows, draws: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, Kept]:
    """As if every row were truncated. Of equal ones the lower id comes first."""
    values, ids = largest(logits, rows.most_kept)
    rank = torch.arange(values.shape[1], device=values.device)
    values = values.masked_fill(rank >= rows.top_k[:, None], -torch.inf)
    probs = torch.softmax(values, dim=-1)
    mass = probs.cumsum(dim=-1)
    enough = rows.top_p[:, None] * mass[:, -1:]
    keep = (values > -torch.inf) & ((mass.roll(1, dims=-1) < enough) | (rows.top_p[:, None] >= 1.0))
    keep[:, 0] = True
    counts = keep.sum(dim=-1)
    # Those kept come first: what is cut off is the end.
    last = counts[:, None] - 1
    total = mass.gather(1, last)
    places = torch.minimum(torch.searchsorted(mass, draws * total, right=True), last)
    chosen = values.gather(1, places) - values.masked_fill(~keep, -torch.inf).logsumexp(dim=-1, keepdim=True)
    kept = Kept(ids, torch.where(rows.truncated, counts, 0))
    return ids.gather(1, places)[:, 0], chosen[:, 0], kept
