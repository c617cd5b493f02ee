"""CUDA graphs of the decode step: one launch instead of hundreds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from headrace.engines.embedded.cache import KeyValueCache
from headrace.models.captures import captured

_SHORTEST = 256
_WARM_UPS = 2

Decode = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor]
"""(tokens [n], positions [n], rows written [n], length) -> logits [n, V], in the weights' dtype"""


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    tokens: torch.Tensor
    positions: torch.Tensor
    rows: torch.Tensor


class DecodeGraphs:
    """One graph per bucket of batch size and of length, both powers of two, captured when first needed.

    The padding rows of a bucket write to the cache's spare slot, at position 0. All graphs write their logits to one
    place, and have their other memory in common.
    """

    def __init__(self, decode: Decode, cache: KeyValueCache, rows: torch.Tensor, vocab_size: int) -> None:
        self._decode = decode
        self._cache = cache
        self._rows = rows
        self._logits = torch.empty((cache.slots, vocab_size), dtype=torch.float32, device=rows.device)
        self._graphs: dict[tuple[int, int], _Graph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._side = torch.cuda.Stream(rows.device)
        """For captures: torch's own stream for them is one for all engines of a process."""

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor, length: int) -> torch.Tensor:
        """Float32 logits [n, V], until the next call."""
        count = len(tokens)
        bucket = min(_power_of_two(count), self._cache.slots)
        reach = min(max(_power_of_two(length), _SHORTEST), self._cache.max_context)
        known = self._graphs.get((bucket, reach))
        if known is None:
            known = self._capture(bucket, reach)
            self._graphs[bucket, reach] = known
        known.tokens[:count].copy_(tokens)
        known.positions.zero_()
        known.positions[:count].copy_(positions)
        known.rows.fill_(self._cache.slots)
        known.rows[:count].copy_(self._rows[:count])
        known.graph.replay()
        return self._logits[:count]

    def _capture(self, bucket: int, reach: int) -> _Graph:
        """Warm-ups and capture write only to the spare slot."""
        device = self._rows.device
        tokens = torch.zeros(bucket, dtype=torch.int64, device=device)
        positions = torch.zeros_like(tokens)
        rows = torch.full_like(tokens, self._cache.slots)
        self._side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._side):
            for _ in range(_WARM_UPS):
                self._decode(tokens, positions, rows, reach)
        torch.cuda.current_stream(device).wait_stream(self._side)
        graph = torch.cuda.CUDAGraph()
        with captured(graph, pool=self._pool, stream=self._side):
            self._logits[:bucket].copy_(self._decode(tokens, positions, rows, reach))
        return _Graph(graph, tokens, positions, rows)


def most_graphs(slots: int, context: int) -> int:
    """How many there may be."""
    lengths = max(0, (context - 1).bit_length() - (_SHORTEST - 1).bit_length()) + 1
    return ((slots - 1).bit_length() + 1) * lengths


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
