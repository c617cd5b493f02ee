"""The model's forward passes over the slots of the cache, whatever computes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from headrace.engines.embedded.cache import KeyValueCache


@dataclass(frozen=True, slots=True)
class ChunkBatch:
    """Chunks of sequences, n tokens in all, padded to one length by repeating each chunk's last token at its own
    position."""

    tokens: torch.Tensor
    """Int64 [b, T]."""
    positions: torch.Tensor
    """Int64 [b, T]."""
    slots: torch.Tensor
    """Int64 [b]."""
    length: int
    """Keys that the longest of the sequences has after this pass."""
    own: torch.Tensor | None = None
    """Int64 [n]: those of the b x T places that are no padding, in order; None: all are."""
    source: torch.Tensor | None = None
    """Int64 [b x T]: which of the n tokens each place repeats; None with `own`."""
    from_start: bool = False
    """Whether every chunk is the beginning of its sequence: then T is `length`, and only padding is past a chunk's
    last token."""

    @property
    def count(self) -> int:
        """n"""
        return self.tokens.numel() if self.own is None else len(self.own)

    def unpadded(self, places: torch.Tensor) -> torch.Tensor:
        """[b x T, ...] to [n, ...]."""
        return places if self.own is None else places[self.own]

    def padded(self, values: torch.Tensor) -> torch.Tensor:
        """[n, ...] to [b x T, ...]."""
        return values if self.source is None else values[self.source]


PrefillPass = tuple[ChunkBatch, ...]
"""What is computed at once, in batches of chunks of like size."""


class Runner(Protocol):
    """Computes keys, values and logits with one version of the weights."""

    def prefill(self, work: PrefillPass) -> None:
        """Write the keys and values of these tokens to the cache. No sequence is in two of the batches."""

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor, length: int) -> torch.Tensor:
        """Feed token i, int64 [n], to slot i at its position; returns float32 logits [n, V].

        `length` is at least 1 + the greatest position.
        """

    def capture(self) -> None:
        """Have ready, where steps are captured, what each size of a decode step needs: nobody should wait for it later,
        nor find that torch gives no memory back while it is made."""

    def route(self, experts: torch.Tensor | None) -> None:
        """From now on route tokens to these [slots, tokens, layers, k], by slot and position; None: as routers choose.
        Raises ValueError where nothing is routed."""

    def prepare(self, weights: Mapping[str, torch.Tensor], *, lasts: bool = True) -> Any:
        """New weights, by checked parameter name, in the form that `flip` takes. Leaves the present ones alone.
        `lasts`: whether the tensors may be kept."""

    def beside(self, cache: KeyValueCache, prepared: Any = None) -> Runner:
        """Another over `cache`, with `prepared` weights, or the present ones: for a few steps beside this one's."""

    def flip(self, prepared: Any) -> None:
        """From now on compute with these. Only between two passes."""

    def forget_cache(self) -> None:
        """Whatever holds addresses of the cache is made anew when it is needed."""

    def drop(self) -> None:
        """Give up the weights: computes nothing until a `flip` brings others."""
