"""Chunks of prompts as one pass: packed where the model multiplies, in batches of like size where it attends."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import numpy as np
import torch

from headrace.engines.embedded.runners.runner import ChunkBatch, PrefillPass
from headrace.engines.embedded.scheduler import Chunk

MOST_PLACES = 2**16
"""Of keys that a batch attends to on a device, rows x longest: a layer's are gathered there, for each query head. A
longer sequence is a batch of its own."""


def prefill_pass(chunks: Iterable[Chunk], device: torch.device, most_places: int | None = None) -> PrefillPass:
    """No batch is more than half padding. `most_places`: as `MOST_PLACES`, the limit of a device unless it is given; on
    a CPU there is none."""
    if most_places is None and device.type != "cpu":
        most_places = MOST_PLACES
    by_size = sorted(chunks, key=lambda chunk: chunk.stop - chunk.start)
    alike = groupby(by_size, key=lambda chunk: (chunk.stop - chunk.start - 1).bit_length())
    return tuple(_pad(batch, device) for _, those in alike for batch in _within(list(those), most_places))


def _within(chunks: list[Chunk], most_places: int | None) -> list[list[Chunk]]:
    """In as few batches as hold so many places each; of like length where there are several."""
    if most_places is None or len(chunks) * max(chunk.stop for chunk in chunks) <= most_places:
        return [chunks]
    batches: list[list[Chunk]] = []
    for chunk in sorted(chunks, key=lambda chunk: chunk.stop):
        if not batches or (len(batches[-1]) + 1) * chunk.stop > most_places:
            batches.append([])
        batches[-1].append(chunk)
    return batches


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
