"""Chunks of prompts as one pass: packed where the model multiplies, in batches of like size where it attends."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import numpy as np
import torch

from headrace.engines.embedded.runners.runner import ChunkBatch, PrefillPass
from headrace.engines.embedded.scheduler import Chunk


def prefill_pass(chunks: Iterable[Chunk], device: torch.device) -> PrefillPass:
    """No batch is more than half padding."""
    by_size = sorted(chunks, key=lambda chunk: chunk.stop - chunk.start)
    alike = groupby(by_size, key=lambda chunk: (chunk.stop - chunk.start - 1).bit_length())
    return tuple(_pad(list(batch), device) for _, batch in alike)


def _pad(chunks: list[Chunk], device: torch.device) -> ChunkBatch:
    """A chunk's padding is its last token once more: who computes it writes what is there already."""
    sizes = np.array([chunk.stop - chunk.start for chunk in chunks])
    width = int(sizes.max())
    within = np.minimum(np.arange(width), sizes[:, None] - 1)
    source = (np.cumsum(sizes) - sizes)[:, None] + within
    tokens = np.concatenate([chunk.sequence.token_ids(chunk.start, chunk.stop) for chunk in chunks]).astype(np.int64)
    starts = np.array([chunk.start for chunk in chunks])
    slots = np.array([chunk.slot for chunk in chunks], dtype=np.int64)

    def placed(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    is_padded = len(tokens) < source.size
    return ChunkBatch(
        placed(tokens[source]),
        placed(starts[:, None] + within),
        placed(slots),
        max(chunk.stop for chunk in chunks),
        placed(np.flatnonzero(np.arange(width) < sizes[:, None])) if is_padded else None,
        placed(source.ravel()) if is_padded else None,
        from_start=not starts.any(),
    )
