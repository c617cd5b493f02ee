"""How far the trainer's log-probs are from the engine's, of tokens that both computed with the same weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.models.packing import MicroBatch, PackRow, pack, plan_microbatches


@dataclass(frozen=True, slots=True)
class Gap:
    """|trainer's log-prob - engine's log-prob| of tokens that both computed with the same weights."""

    tokens: int
    sum_abs: float
    max_abs: float


def measure(rows: Sequence[PackRow], max_tokens: int, score: Callable[[MicroBatch], Tensor]) -> Gap | None:
    """The gap of `rows`, whose column `logprobs` is the engine's. `score`: the trainer's log-probs [N] of a
    micro-batch of at most `max_tokens` tokens (or one longer sample). None of no rows. Blocking."""
    if not rows:
        return None
    apart = []
    for places in plan_microbatches([len(row) for row in rows], max_tokens):
        micro = pack([rows[place] for place in places])
        apart.append((score(micro) - micro.columns["logprobs"])[micro.mask].abs())
    every = torch.cat(apart)
    return Gap(every.numel(), float(every.sum()), float(every.max())) if every.numel() else None
