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
    """One graph per bucket of batch size and of length, both powers of two: all at once by `capture`, or when first
    needed.

    The padding rows of a bucket write to the cache's spare slot, at position 0. All graphs write their logits to one
    place, and have their other memory in common.
    """

    def __init__(
        self, decode: Decode, cache: KeyValueCache, rows: torch.Tensor, vocab_size: int, side: torch.cuda.Stream
    ) -> None:
        """`side`: for captures, since torch's own stream for them is one for all engines of a process."""
        self._decode = decode
        self._cache = cache
        self._rows = rows
        self._logits = torch.empty((cache.slots, vocab_size), dtype=torch.float32, device=rows.device)
        self._graphs: dict[tuple[int, int], _Graph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._side = side

    def capture(self) -> None:
        """All that there may be, the largest first: the others find its memory in the pool."""
        for bucket, reach in graph_sizes(self._cache.slots, self._cache.max_context):
            self._graph(bucket, reach)

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor, length: int) -> torch.Tensor:
        """Float32 logits [n, V], until the next call."""
        count = len(tokens)
        bucket = min(_power_of_two(count), self._cache.slots)
        reach = min(max(_power_of_two(length), _SHORTEST), self._cache.max_context)
        known = self._graph(bucket, reach)
        known.tokens[:count].copy_(tokens)
        known.positions.zero_()
        known.positions[:count].copy_(positions)
        known.rows.fill_(self._cache.slots)
        known.rows[:count].copy_(self._rows[:count])
        known.graph.replay()
        return self._logits[:count]

    def _graph(self, bucket: int, reach: int) -> _Graph:
        known = self._graphs.get((bucket, reach))
        if known is None:
            known = self._graphs[bucket, reach] = self._capture(bucket, reach)
        return known

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


def graph_sizes(slots: int, context: int) -> list[tuple[int, int]]:
    """Sequences and length of each graph that there may be, the largest first."""
    counts = {min(1 << i, slots) for i in range(slots.bit_length() + 1)}
    lengths = {min(max(1 << i, _SHORTEST), context) for i in range(context.bit_length() + 1)}
    return sorted(((n, length) for n in counts for length in lengths), key=lambda size: (size[0] * size[1], size))[::-1]


def most_graphs(slots: int, context: int) -> int:
    """How many there may be."""
    return len(graph_sizes(slots, context))


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
