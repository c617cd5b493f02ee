"""How the processes of a tensor-parallel and of a context-parallel group share one pass over a micro-batch.

All of them are given the same micro-batch, and all end with the same result. The tokens are cut into as many equal runs
as there are context ranks; a rank's run is cut again among its tensor ranks where norms and experts work (sequence
parallel). Around attention the context ranks exchange tokens for heads (Ulysses, Jacobs et al., arXiv:2309.14509), so
that each has all tokens of some heads. The output layer runs over each context rank's share of the tokens that are
asked for, and over each tensor rank's part of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.models.parallel.collectives import Group, exchanged, gathered


@dataclass(frozen=True, slots=True)
class Ranks:
    """Processes that share something."""

    group: Group
    rank: int
    size: int


@dataclass(frozen=True, slots=True)
class SharedPass:
    tensor: Ranks | None = None
    context: Ranks | None = None

    def tokens(self, values: Tensor) -> Tensor:
        """Of [U, ...] those of this rank's run, [R, ...]. The last runs are filled up by the last token."""
        padded = self.padded(len(values))
        filled = torch.cat([values, values[-1:].expand(padded - len(values), *values.shape[1:])])
        if self.context is None:
            return filled
        run = padded // self.context.size
        return filled[self.context.rank * run : (self.context.rank + 1) * run]

    def part(self, values: Tensor) -> Tensor:
        """Of this rank's run [R, ...] the tokens that it has where norms and experts work, [R / tensor ranks, ...]."""
        return values if self.tensor is None else values.chunk(self.tensor.size)[self.tensor.rank]

    def hidden(self, states: Tensor) -> Tensor:
        """Of this rank's part of its run [R / tensor ranks, D] to all of them, [padded(U), D]."""
        if self.tensor is not None:
            states = gathered(states, self.tensor.group, "same")
        return states if self.context is None else gathered(states, self.context.group, "parts")

    def own(self, places: Tensor) -> Tensor:
        """Of [P] those of which this rank computes the output layer, [ceil(P / context ranks)]."""
        if self.context is None:
            return places
        share = -(-len(places) // self.context.size)
        at = torch.arange(share, device=places.device) + self.context.rank * share
        return places[at.clamp(max=len(places) - 1)]

    def all(self, values: Tensor, count: int) -> Tensor:
        """What all ranks made of their `own` of `count`, [count, ...]."""
        return values if self.context is None else gathered(values, self.context.group, "same")[:count]

    def by_heads(self, states: Tensor, tokens: int) -> Tensor:
        """[1, H, R, D] of this rank's run to [1, H / context ranks, tokens, D]: some heads of all U tokens. Fewer heads
        than ranks are repeated first."""
        if self.context is None:
            return states[:, :, :tokens]
        size = self.context.size
        if states.shape[1] < size:
            states = states.repeat_interleave(size // states.shape[1], dim=1)
        parts = states[0].unflatten(0, (size, -1))  # [S, H / S, R, D]
        came = exchanged(parts, self.context.group)
        return came.transpose(0, 1).flatten(1, 2)[None, :, :tokens]

    def by_tokens(self, states: Tensor) -> Tensor:
        """[1, tokens, H / context ranks, D] to [1, R, H, D]."""
        tokens = states.shape[1]
        padded = self.padded(tokens)
        if padded > tokens:
            states = torch.cat([states, states.new_zeros(1, padded - tokens, *states.shape[2:])], dim=1)
        if self.context is None:
            return states
        parts = states[0].unflatten(0, (self.context.size, -1))  # [S, R, H / S, D]
        return exchanged(parts, self.context.group).transpose(0, 1).flatten(1, 2)[None]

    @property
    def size(self) -> int:
        """How many ranks share it."""
        return (1 if self.tensor is None else self.tensor.size) * (1 if self.context is None else self.context.size)

    def padded(self, tokens: int) -> int:
        """So many, that all ranks have as many."""
        return -(-tokens // self.size) * self.size
